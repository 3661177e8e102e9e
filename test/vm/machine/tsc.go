package machine

import (
	"fmt"
	"sync"
	"time"
)

// TSC returns the frequency of the processor's time stamp counter in kHz. Under software emulation that of a
// guest is the same.
var TSC = sync.OnceValue(func() uint64 {
	const span = 50 * time.Millisecond // for an error below 1 in 10,000
	begin := look()
	time.Sleep(span)
	end := look()
	return (end.ticks - begin.ticks) * uint64(time.Millisecond) / uint64(end.time.Sub(begin.time))
})

// look reads clock and counter, and repeats that if too much time has passed between the two readings.
func look() (best moment) {
	const enough, tries = time.Microsecond, 10_000
	apart := time.Hour
	for i := 0; i < tries && apart > enough; i++ {
		before := time.Now()
		n := ticks()
		if d := time.Since(before); d < apart {
			apart, best = d, moment{before.Add(d / 2), n}
		}
	}
	return best
}

type moment struct {
	time  time.Time
	ticks uint64
}

// KernelArguments returns the command line of a kernel that runs under software emulation, followed by more. It has
// the frequency of the time stamp counter: if a kernel measures that while others use the processors, its clock may
// be wrong (35 times too fast was seen), and then it gives up peers that work. The kernel's own tests of its cryptography
// are left out: they are a quarter of the instructions of a boot. So is what a kernel does against attackers: programs whose
// libraries lie at other addresses in each process have to be translated anew for each process, pages that are cleared when
// they are given out are cleared once more by those who want them clear, and kernel memory that is read-only is looked
// through after the boot. There is no accounting for groups of processes, for there are none.
func KernelArguments(more ...string) string {
	const hz = 250 // of Debian's kernel, which else measures how many loops of its delays are a tick
	args := fmt.Sprintf("console=ttyS0 no_timer_check mitigations=off tsc=reliable tsc_early_khz=%d lpj=%d nowatchdog cryptomgr.notests "+
		"norandmaps init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off rodata=off security=none audit=0 cgroup_disable=memory,cpu psi=0 "+
		"earlyprintk=ttyS0 net.ifnames=0 panic=-1", TSC(), TSC()*1000/hz)
	for _, a := range more {
		args += " " + a
	}
	return args
}
