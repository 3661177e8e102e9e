package file

import (
	"encoding/hex"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"oneshot/backend"
)

var _ backend.Identifier = (*Store)(nil)

// Identities names the file by its file system, its inode and the inode's generation: by whichever
// path it is opened, after it was renamed, and after a restart. There is none where the file system has
// no name (FUSE, NFS), for then inode numbers of two of them may meet.
func (s *Store) Identities() []backend.Identity {
	ids, _ := identitiesOf(s.fd) // an open file can be asked for its status
	return ids
}

// IdentitiesOf returns the identities that a store on the file at path has.
func IdentitiesOf(path string) ([]backend.Identity, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("file store %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return identitiesOf(fd)
}

func identitiesOf(fd int) (ids []backend.Identity, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	inode := fmt.Sprintf("-%d", st.Ino)
	// An inode number is used again; its generation is another one then. Some file systems do not
	// tell (ioctl_iflags(2)).
	if generation, err := unix.IoctlGetUint32(fd, fsIOCGetVersion); err == nil {
		inode += fmt.Sprintf("-%d", generation)
	}
	names, err := fileSystemOf(fd)
	for _, fs := range names {
		ids = append(ids, backend.Identity("file-"+fs+inode))
	}
	return ids, err
}

const (
	fsIOCGetVersion = 0x80087601 // FS_IOC_GETVERSION: _IOR('v', 1, long), which gets an int
	fsIOCGetUUID    = 0x80111500 // FS_IOC_GETFSUUID (Linux 6.9): _IOR(0x15, 0, struct fsuuid2)
)

// fileSystemOf names the file system: by its UUID where the kernel tells it, and by the identifier of statfs(2), which was its name
// before the kernel told. Not every file system has one.
func fileSystemOf(fd int) (names []string, err error) {
	if uuid := uuidOf(fd); uuid != "" {
		names = append(names, uuid)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, err
	}
	if fs.Fsid.Val != [2]int32{} {
		names = append(names, fmt.Sprintf("%x.%08x%08x", fs.Type, uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1])))
	}
	return names, nil
}

// uuidOf is a variable for tests, in which the kernel is older.
var uuidOf = func(fd int) string {
	var uuid struct {
		len  uint8
		uuid [16]byte
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsIOCGetUUID, uintptr(unsafe.Pointer(&uuid)))
	if errno == 0 && uuid.len > 0 && uuid.len <= 16 {
		return hex.EncodeToString(uuid.uuid[:uuid.len])
	}
	return ""
}
