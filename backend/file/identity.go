package file

import (
	"encoding/hex"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/backend"
)

var _ backend.Identifier = (*Store)(nil)

// Identity names the file by its file system, its inode and the inode's generation: by whichever
// path it is opened, after it was renamed, and after a restart. It is empty where the file system has
// no name (FUSE, NFS), for then inode numbers of two of them may meet.
func (s *Store) Identity() backend.Identity {
	id, _ := identityOf(s.fd) // an open file can be asked for its status
	return id
}

// IdentityOf returns the identity that a store on the file at path has.
func IdentityOf(path string) (backend.Identity, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("file store %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return identityOf(fd)
}

func identityOf(fd int) (backend.Identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	fs, err := fileSystemOf(fd)
	if err != nil || fs == "" {
		return "", err
	}
	id := fmt.Sprintf("file-%s-%d", fs, st.Ino)
	// An inode number is used again; its generation is another one then. Some file systems do not
	// tell (ioctl_iflags(2)).
	if generation, err := unix.IoctlGetUint32(fd, fsIOCGetVersion); err == nil {
		id += fmt.Sprintf("-%d", generation)
	}
	return backend.Identity(id), nil
}

const (
	fsIOCGetVersion = 0x80087601 // FS_IOC_GETVERSION: _IOR('v', 1, long), which gets an int
	fsIOCGetUUID    = 0x80111500 // FS_IOC_GETFSUUID (Linux 6.9): _IOR(0x15, 0, struct fsuuid2)
)

// fileSystemOf names the file system: by its UUID, and where the kernel does not tell that by the
// identifier of statfs(2). Not every file system has one; then the name is empty.
func fileSystemOf(fd int) (string, error) {
	var uuid struct {
		len  uint8
		uuid [16]byte
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsIOCGetUUID, uintptr(unsafe.Pointer(&uuid)))
	if errno == 0 && uuid.len > 0 && uuid.len <= 16 {
		return hex.EncodeToString(uuid.uuid[:uuid.len]), nil
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return "", err
	}
	if fs.Fsid.Val == [2]int32{} {
		return "", nil
	}
	return fmt.Sprintf("%x.%08x%08x", fs.Type, uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1])), nil
}
