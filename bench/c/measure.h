// What both load generators share: the clock, latencies, the line of figures.
#ifndef MEASURE_H
#define MEASURE_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// Latencies in ns. Each power of two has 64 steps, so errors are below 1.6 %.
enum { STEPS = 64, BUCKETS = 64 * STEPS };
struct histogram { uint64_t count[BUCKETS], total; };

static inline void record(struct histogram *h, uint64_t ns)
{
	unsigned shift = ns < STEPS ? 0 : 63 - __builtin_clzll(ns) - 6;
	h->count[ns < STEPS ? ns : (shift + 1) * STEPS + (ns >> shift) - STEPS]++;
	h->total++;
}

static inline uint64_t percentile(const struct histogram *h, double p)
{
	uint64_t want = (uint64_t)((double)h->total * p), sum = 0;
	for (unsigned i = 0; i < BUCKETS; i++)
		if ((sum += h->count[i]) > want)
			return i < STEPS ? i : (uint64_t)(STEPS + i % STEPS) << (i / STEPS - 1);
	return 0;
}

static inline double cpu_seconds(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

// One JSON object, which the driver in Go reads.
static inline void report(const struct histogram *h, uint64_t begin, uint64_t end, double cpu)
{
	printf("{\"ios\":%llu,\"seconds\":%.6f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"client_cpu\":%.3f}\n",
	       (unsigned long long)h->total, (double)(end - begin) / 1e9, (double)percentile(h, 0.50) / 1e3,
	       (double)percentile(h, 0.99) / 1e3, cpu);
}

// xorshift64*: where the next random block is.
static inline uint64_t next_random(uint64_t *s)
{
	*s ^= *s >> 12;
	*s ^= *s << 25;
	*s ^= *s >> 27;
	return *s * 2685821657736338717u;
}

_Noreturn static inline void fail(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
	exit(1);
}
#endif
