// The 100 % line: the bytes that a target moves, without iSCSI and without
// SCSI. A request is a 48-byte header, followed by the data of a write; its
// answer is a 48-byte header, followed by the data of a read.
//
//   echo serve [ADDRESS:]PORT                             127.0.0.1 without ADDRESS
//   echo load [ADDRESS:]PORT read|write SIZE DEPTH CONNECTIONS SECONDS
//
// Both ends are one thread with epoll, which reads as much as there is and sends
// all that follows from it with one writev. Build: cc -O2 -o echo echo.c
#define _GNU_SOURCE
#include "measure.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

struct header {
	uint32_t size; // of the data of this request or answer
	uint32_t wanted; // request: of the data of the answer
	uint64_t offset, stamp;
	uint8_t rest[24]; // 48 bytes, as a basic header segment
};
_Static_assert(sizeof(struct header) == 48, "header");

#ifndef MEMORY_MIB
#define MEMORY_MIB 256
#endif
enum {
	QUEUE = 1024, // messages waiting to be sent, more than DEPTH
	INPUT = 64 << 10,
	MEMORY = MEMORY_MIB << 20,
};

struct message { struct header h; uint8_t *data; };
struct conn {
	int fd, blocked; // blocked: the socket takes no more, EPOLLOUT is awaited
	struct message out[QUEUE];
	unsigned head, tail; // of out
	size_t sent; // bytes of out[head]
	struct header current; // whose data is being received
	uint8_t *into; // where the rest of that data goes
	size_t left;
	size_t have; // bytes in input
	uint8_t input[INPUT];
};
// arrived is called for each complete message.
static void (*arrived)(struct conn *, const struct header *);

static int epfd;
static uint8_t *memory; // the server's medium; the client's buffer
static struct histogram latencies;
static uint64_t deadline, seed = 88172645463325252u;
static uint32_t size;
static int writes;
static unsigned outstanding;

static void check(int ok, const char *what) { if (!ok) fail(what, strerror(errno)); }

static void enqueue(struct conn *c, struct header h, uint8_t *data)
{
	c->out[c->tail++ % QUEUE] = (struct message){h, data};
}

// gather lists what is queued, beginning in the middle of the first message.
static int gather(struct conn *c, struct iovec *v, int max)
{
	int n = 0;
	size_t skip = c->sent;
	for (unsigned i = c->head; i != c->tail && n + 2 <= max; i++, skip = 0) {
		struct message *m = &c->out[i % QUEUE];
		if (skip < sizeof m->h)
			v[n++] = (struct iovec){(uint8_t *)&m->h + skip, sizeof m->h - skip}, skip = 0;
		else
			skip -= sizeof m->h;
		if (m->h.size)
			v[n++] = (struct iovec){m->data + skip, m->h.size - skip};
	}
	return n;
}

static void watch(struct conn *c, int blocked)
{
	if (c->blocked == blocked)
		return;
	c->blocked = blocked;
	struct epoll_event e = {blocked ? EPOLLIN | EPOLLOUT : EPOLLIN, {.ptr = c}};
	check(!epoll_ctl(epfd, EPOLL_CTL_MOD, c->fd, &e), "epoll_ctl");
}

static int flush(struct conn *c)
{
	while (c->head != c->tail) {
		struct iovec v[512];
		ssize_t w = writev(c->fd, v, gather(c, v, 512));
		if (w < 0 && errno == EAGAIN) {
			watch(c, 1);
			return 0;
		}
		if (w < 0)
			return -1;
		c->sent += (size_t)w;
		while (c->head != c->tail && c->sent >= sizeof(struct header) + c->out[c->head % QUEUE].h.size)
			c->sent -= sizeof(struct header) + c->out[c->head++ % QUEUE].h.size;
	}
	watch(c, 0);
	return 0;
}

// digest consumes the input: headers, and the beginning of data, whose rest the
// next readv puts in its place.
static void digest(struct conn *c)
{
	size_t at = 0;
	while (c->have - at >= sizeof(struct header)) {
		memcpy(&c->current, c->input + at, sizeof c->current);
		at += sizeof c->current;
		size_t n = c->have - at < c->current.size ? c->have - at : c->current.size;
		c->into = memory + c->current.offset;
		memcpy(c->into, c->input + at, n);
		at += n;
		c->into += n;
		c->left = c->current.size - n;
		if (c->left)
			break;
		arrived(c, &c->current);
	}
	memmove(c->input, c->input + at, c->have - at);
	c->have -= at;
}

static int receive(struct conn *c)
{
	struct iovec v[2] = {{c->into, c->left}, {c->input + c->have, INPUT - c->have}};
	ssize_t r = c->left ? readv(c->fd, v, 2) : read(c->fd, v[1].iov_base, v[1].iov_len);
	if (r < 0 && errno == EAGAIN)
		return 0;
	if (r <= 0)
		return -1;
	size_t n = (size_t)r < c->left ? (size_t)r : c->left;
	if (c->left) {
		c->into += n;
		c->left -= n;
		if (!c->left)
			arrived(c, &c->current);
	}
	c->have += (size_t)r - n;
	if (!c->left)
		digest(c);
	return 0;
}

static struct conn *add(int fd)
{
	int one = 1;
	struct conn *c = calloc(1, sizeof *c);
	check(c && !setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), "connection");
	check(!fcntl(fd, F_SETFL, O_NONBLOCK), "fcntl");
	c->fd = fd;
	struct epoll_event e = {EPOLLIN, {.ptr = c}};
	check(!epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &e), "epoll_ctl");
	return c;
}

// turn waits once and serves what came. An event without a connection announces a new one.
static void turn(int listener)
{
	struct epoll_event events[64];
	int n = epoll_wait(epfd, events, 64, 30000);
	for (int i = 0; i < n; i++) {
		struct conn *c = events[i].data.ptr;
		if (!c) {
			int fd = accept(listener, NULL, NULL);
			check(fd >= 0, "accept");
			add(fd);
		} else if ((events[i].events & ~(unsigned)EPOLLOUT && receive(c)) || flush(c)) {
			close(c->fd);
			free(c);
		}
	}
	if (n == 0 && outstanding)
		fail("epoll_wait", "no answer for 30 s");
}

static void answer(struct conn *c, const struct header *request)
{
	struct header h = *request;
	h.size = request->wanted;
	enqueue(c, h, memory + h.offset);
}

static void submit(struct conn *c)
{
	uint64_t offset = next_random(&seed) % (MEMORY / size) * size;
	struct header h = {.size = writes ? size : 0, .wanted = writes ? 0 : size, .offset = offset, .stamp = now_ns()};
	enqueue(c, h, memory);
	outstanding++;
}

static void completed(struct conn *c, const struct header *h)
{
	uint64_t end = now_ns();
	outstanding--;
	if (end < deadline) {
		record(&latencies, end - h->stamp);
		submit(c);
	}
}

_Noreturn static void serve(struct sockaddr_in *addr)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	check(!bind(fd, (struct sockaddr *)addr, sizeof *addr) && !listen(fd, 64), "listen");
	struct epoll_event e = {EPOLLIN, {.ptr = NULL}};
	check(!epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &e), "epoll_ctl");
	arrived = answer;
	for (;;)
		turn(fd);
}

static int load(struct sockaddr_in *addr, char **argv)
{
	writes = !strcmp(argv[0], "write");
	size = (uint32_t)atoi(argv[1]);
	int depth = atoi(argv[2]), n = atoi(argv[3]);
	struct conn *conns[64];
	for (int i = 0; i < n; i++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		check(!connect(fd, (struct sockaddr *)addr, sizeof *addr), "connect");
		conns[i] = add(fd);
	}
	arrived = completed;
	double cpu = cpu_seconds();
	uint64_t begin = now_ns();
	deadline = begin + (uint64_t)(atof(argv[4]) * 1e9);
	for (int i = 0; i < n; i++) {
		for (int d = 0; d < depth; d++)
			submit(conns[i]);
		check(!flush(conns[i]), "writev");
	}
	while (outstanding)
		turn(-1);
	report(&latencies, begin, deadline, cpu_seconds() - cpu);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		fail(argv[0], "serve [ADDRESS:]PORT | load [ADDRESS:]PORT read|write SIZE DEPTH CONNECTIONS SECONDS");
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	char *port = strchr(argv[2], ':');
	if (port) {
		*port++ = 0;
		check(inet_aton(argv[2], &addr.sin_addr), "address");
	}
	addr.sin_port = htons((uint16_t)atoi(port ? port : argv[2]));
	epfd = epoll_create1(0);
	memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(memory != MAP_FAILED, "mmap");
	memset(memory, 1, MEMORY); // a page never written would be shared, and cheaper to read
	if (!strcmp(argv[1], "serve"))
		serve(&addr);
	if (!strcmp(argv[1], "load") && argc == 8)
		return load(&addr, argv + 3);
	fail(argv[0], "wrong arguments");
}
