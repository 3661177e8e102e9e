package machine

import (
	"fmt"
	"sync"
	"time"
)

// TSC is the frequency of the processor's time stamp counter, in kHz. Under software emulation a guest's is
// the same.
var TSC = sync.OnceValue(func() uint64 {
	const span = 50 * time.Millisecond // for an error below 1 in 10,000
	begin := look()
	time.Sleep(span)
	end := look()
	return (end.ticks - begin.ticks) * uint64(time.Millisecond) / uint64(end.time.Sub(begin.time))
})

// look reads clock and counter, and again if much went by in between: others use the processors, too.
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

// KernelArguments are what a kernel is told that runs under software emulation; more is for its user. The
// frequency of the time stamp counter is among them: where a kernel measures it while others use the
// processors, its clock may be wrong from then on (35 times too fast was seen), and it gives
// peers up that are well.
func KernelArguments(more ...string) string {
	args := fmt.Sprintf("console=ttyS0 no_timer_check mitigations=off tsc=reliable tsc_early_khz=%d nowatchdog earlyprintk=ttyS0 net.ifnames=0 panic=-1", TSC())
	for _, a := range more {
		args += " " + a
	}
	return args
}
