// A stand-in for libibverbs and librdmacm with one device, which exists in this process only: queue pairs reach one
// another through memory. See fake.go.
#ifndef ONESHOT_VERBS_FAKE_H
#define ONESHOT_VERBS_FAKE_H

#include <stdint.h>

struct fake_config {
	const char *node;   // of the device in sysfs
	int iwarp;          // else InfiniBand
	int siw;            // with what siw does differently
	int late_reads;     // a Read is answered when the next one is posted, or a queue is polled
	int rxe;            // the device says that it is rxe
	int late_flush;     // a queue pair in the error state completes nothing that was posted
	int clean;          // the completions of a queue pair are thrown away when it is destroyed
	int blames;         // the end of a connection is an error of who has sent a Read Response last
	int windows;        // an iWARP device has memory windows, as InfiniBand has in any case
	int no_invalidate;  // no Send with Invalidate, nor an invalidation of its own
	uint32_t max_work, max_sge, max_inline;
};

// fake_find returns the stand-in for a function of the libraries, or NULL.
void *fake_find(const char *name);
// fake_begin makes the device what c says.
void fake_begin(const struct fake_config *c);
// fake_fail lets calls of a function fail with err from now on, after that many calls that succeed. An err of 0 ends
// that.
void fake_fail(const char *function, int err, int after);
// fake_hold makes posted work wait (1), or only the answers to Reads (2); 0 ends that.
void fake_hold(int on);
// fake_keep makes the destruction of identifiers that listen wait (1), or the end of queue pairs (2); 0 ends that.
void fake_keep(int on);
// fake_await_kept waits until a call waits because of that.
void fake_await_kept(void);
// fake_sinks waits until Reads of that many octets are under way. It returns how many pieces of memory they go to, and the
// first n of these.
struct fake_sink { uint32_t stag, length; void *at; };
int fake_sinks(struct fake_sink *out, int n, uint64_t octets);
// fake_mute delivers events of the connection manager without making its descriptor readable.
void fake_mute(int on);
// fake_break ends the next work request of an opcode with a status.
void fake_break(int opcode, int status);
// fake_async makes an asynchronous event, of the device or of the queue pair made last.
void fake_async(int type);
// fake_lose_queue_pair makes the queue pair made last complete nothing any more.
void fake_lose_queue_pair(void);
// fake_part makes the queue pair made last take a receive of its shared queue, as for the first part of a message whose
// rest never comes. 0: there is none.
int fake_part(void);
// fake_removal tells all identifiers of the connection manager that the device is being removed.
void fake_removal(void);
// fake_end waits up to that many seconds until no objects are left, and returns how many there are.
int fake_end(int seconds);

#endif
