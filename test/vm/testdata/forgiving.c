/*
 * An allocator that forgives, to be preloaded: memory is zero, is never handed out again, and
 * has room behind it. Debian 12's libiscsi 1.19 needs that over iSER: it reads fields that it has
 * not set, and its thread for connection events goes on with memory that was freed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA ((size_t)1 << 36) /* address space; only pages that are touched take memory */
#define ROOM 256
#define LARGE 65536

static _Atomic(uintptr_t) next;

static uintptr_t start(void)
{
	uintptr_t at = atomic_load(&next), none = 0;

	if (at != 0)
		return at;
	void *p = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return 0;
	if (!atomic_compare_exchange_strong(&next, &none, (uintptr_t)p))
		munmap(p, ARENA); /* another thread was first */
	return atomic_load(&next);
}

/* Each piece has its length in front. */
void *memalign(size_t alignment, size_t n)
{
	uintptr_t at = start(), p;

	if (at == 0 || n > ARENA / 2)
		return NULL;
	if (alignment < 16)
		alignment = 16;
	do
		p = (at + sizeof n + alignment - 1) & ~(alignment - 1);
	while (!atomic_compare_exchange_weak(&next, &at, p + n + ROOM));
	memcpy((char *)p - sizeof n, &n, sizeof n);
	return (void *)p;
}

void *malloc(size_t n) { return memalign(16, n); }
void *aligned_alloc(size_t alignment, size_t n) { return memalign(alignment, n); }
void *valloc(size_t n) { return memalign(4096, n); }

/* Large pieces give their pages back, and read as zero from then on. */
void free(void *p)
{
	size_t n = 0;
	uintptr_t from, to;

	if (p == NULL)
		return;
	memcpy(&n, (char *)p - sizeof n, sizeof n);
	from = ((uintptr_t)p + 4095) & ~(uintptr_t)4095;
	to = ((uintptr_t)p + n) & ~(uintptr_t)4095;
	if (n >= LARGE && from < to)
		madvise((void *)from, to - from, MADV_DONTNEED);
}

void *calloc(size_t n, size_t size)
{
	size_t all;

	return __builtin_mul_overflow(n, size, &all) ? NULL : malloc(all);
}

void *realloc(void *p, size_t n)
{
	size_t was = 0;
	void *q = malloc(n);

	if (p == NULL || q == NULL)
		return q;
	memcpy(&was, (char *)p - sizeof was, sizeof was);
	return memcpy(q, p, was < n ? was : n);
}

int posix_memalign(void **p, size_t alignment, size_t n)
{
	*p = memalign(alignment, n);
	return *p == NULL ? ENOMEM : 0;
}
