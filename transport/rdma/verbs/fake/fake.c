//go:build verbs && cgo && linux

#define _GNU_SOURCE
#include "fake.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port

enum { MAX_SGE = 32, MAX_PRIVATE = 256, SENDPAGE = 4096, SIW_VENDOR = 0x626d74, RXE_VENDOR = 0xffffff, CONSUMER_REJECT = 28, INVALID_SERVICE = 8 };

// One lock for all: nothing here calls back into the program.
static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
static struct fake_config cfg;
static int objects, holding, keeping, waiting, muted, broken_opcode = -1, broken_status;
static uint32_t serial;
static uint16_t next_port;

#define LOCKED __attribute__((cleanup(unlock), unused)) int locked = pthread_mutex_lock(&big)
static void unlock(int *l) { (void)l; pthread_mutex_unlock(&big); }

static pthread_cond_t dropped = PTHREAD_COND_INITIALIZER, kept = PTHREAD_COND_INITIALIZER;
static pthread_cond_t stopped = PTHREAD_COND_INITIALIZER; // a call is kept, or a Read waits for its answer
static void *make(size_t n) { objects++; return calloc(1, n); }
static void drop(void *p) { objects--; free(p); pthread_cond_broadcast(&dropped); }

// wait_while waits as long as tests want calls of that kind to.
static void wait_while(int kind)
{
	waiting++;
	pthread_cond_broadcast(&stopped);
	while (keeping == kind)
		pthread_cond_wait(&kept, &big);
	waiting--;
}

// Failures that tests want.
static struct { const char *function; int err, after; } failures[16];

static int fails(const char *function)
{
	for (int i = 0; i < 16; i++)
		if (failures[i].function && !strcmp(failures[i].function, function)) {
			if (failures[i].after-- > 0)
				return 0;
			failures[i].after = 0;
			errno = failures[i].err;
			if (errno == ESTALE || errno == EADDRINUSE) // once
				failures[i].after = 1 << 30;
			if (errno == ESTALE) // and without a reason
				errno = 0;
			return 1;
		}
	return 0;
}

// A pipe that makes its read end readable once for each thing put in.
struct bell { int in, out; };
static void bell_make(struct bell *b)
{
	int fd[2];
	if (pipe2(fd, O_NONBLOCK | O_CLOEXEC))
		abort();
	b->out = fd[0];
	b->in = fd[1];
}
static void bell_close(struct bell *b) { close(b->in); close(b->out); }

// ---- objects

enum { EVENTS = 4096 };
struct context { struct ibv_context ibv; struct bell bell; struct ibv_async_event queue[EVENTS]; int n; };
struct channel { struct ibv_comp_channel ibv; struct bell bell; };
struct cq { struct ibv_cq ibv; struct ibv_wc *wc; int n, armed; };
struct mr { struct ibv_mr ibv; struct mr *next; int access; };
struct mw { struct ibv_mw ibv; struct mw *next; struct qp *qp; uint64_t addr, len; int access, valid; };
struct receive { struct receive *next; uint64_t id; int n; struct ibv_sge sge[MAX_SGE]; };
struct work {
	struct work *next;
	struct ibv_send_wr wr;
	struct ibv_sge sge[MAX_SGE];
	uint32_t bytes;
	char *copy; // inline data
};
struct srq { struct ibv_srq ibv; struct receive *head; int n, max; };
struct qp {
	struct ibv_qp ibv;
	struct qp *next, *peer;
	struct cmid *id;
	struct work *head, *reads; // posted; Reads that were sent
	struct receive *recv;
	struct receive *part; // of a shared queue, in use for a message that has come in part
	int unacked; // events that were taken and not acknowledged
	int sends, recvs, max_send, max_recv, max_inline, lost;
	int responded; // what it sent last is a Read Response
};
// Bytes that siw's TCP still refers to.
struct late { struct late *next; const char *from; char *to; size_t n; };

struct event { struct event *next; struct rdma_cm_event e; char data[MAX_PRIVATE]; };
struct cmchannel { struct rdma_event_channel ibv; struct bell bell; struct event *head; };
enum cmstate { IDLE, LISTENING, ASKING, ASKED, CONNECTED, LEFT, OVER };
struct cmid {
	struct rdma_cm_id ibv;
	struct cmid *next, *peer;
	enum cmstate state;
	uint32_t qpn;
	uint8_t depth, resources;
};

static struct mr *mrs;
static struct mw *mws;
static struct qp *qps;
static struct late *lates;
static struct cmid *ids;
static struct ibv_device device;
static struct context *cm_context, *app_context; // librdmacm opens the device for itself

#define APPEND(list, item) do { __typeof__(&(list)) at_ = &(list); while (*at_) at_ = &(*at_)->next; (item)->next = NULL; *at_ = (item); } while (0)
#define REMOVE(list, item) do { __typeof__(&(list)) at_ = &(list); while (*at_ && *at_ != (item)) at_ = &(*at_)->next; if (*at_) *at_ = (item)->next; } while (0)

// ---- completions

static void push(struct ibv_cq *c, const struct ibv_wc *wc)
{
	struct cq *q = (struct cq *)c;

	q->wc = realloc(q->wc, (q->n + 1) * sizeof *wc);
	q->wc[q->n++] = *wc;
	if (q->armed && q->ibv.channel) {
		q->armed = 0;
		if (write(((struct channel *)q->ibv.channel)->bell.in, &q, sizeof q) < 0)
			abort();
	}
}

static enum ibv_wc_opcode told(enum ibv_wr_opcode o)
{
	switch (o) {
	case IBV_WR_RDMA_WRITE: return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
	case IBV_WR_LOCAL_INV: return IBV_WC_LOCAL_INV;
	case IBV_WR_BIND_MW: return IBV_WC_BIND_MW;
	default: return IBV_WC_SEND;
	}
}

static void done(struct qp *q, struct work *w, enum ibv_wc_status status)
{
	struct ibv_wc wc = { .wr_id = w->wr.wr_id, .status = status, .opcode = told(w->wr.opcode), .byte_len = w->bytes, .qp_num = q->ibv.qp_num };

	if (!q->lost && (status != IBV_WC_SUCCESS || w->wr.send_flags & IBV_SEND_SIGNALED))
		push(q->ibv.send_cq, &wc);
	q->sends--;
	free(w->copy);
	free(w);
}

static void received(struct qp *q, struct receive *r, struct ibv_wc wc)
{
	wc.wr_id = r->id;
	wc.opcode = IBV_WC_RECV;
	wc.qp_num = q->ibv.qp_num;
	if (!q->lost)
		push(q->ibv.recv_cq, &wc);
	free(r);
}

// ---- connection manager's events

static void tell(struct cmid *id, int type, int status, struct cmid *listener, const struct rdma_conn_param *p)
{
	struct cmchannel *c = (struct cmchannel *)id->ibv.channel;
	struct event *e = calloc(1, sizeof *e);

	e->e.id = &id->ibv;
	e->e.listen_id = listener ? &listener->ibv : NULL;
	e->e.event = type;
	e->e.status = status;
	if (p) {
		e->e.param.conn = *p;
		if (p->private_data_len)
			memcpy(e->data, p->private_data, p->private_data_len);
		e->e.param.conn.private_data = e->data;
	}
	if (listener)
		c = (struct cmchannel *)listener->ibv.channel;
	APPEND(c->head, e);
	if (!muted && write(c->bell.in, "", 1) < 0)
		abort();
}

static void happened(int type, struct ibv_qp *qp)
{
	struct context *c = app_context;

	if (!c || c->n == EVENTS)
		return;
	struct ibv_async_event *e = &c->queue[c->n++];
	memset(e, 0, sizeof *e);
	e->event_type = type;
	e->element.qp = qp;
	if (type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_PORT_ACTIVE)
		e->element.port_num = 1;
	if (write(c->bell.in, "", 1) < 0)
		abort();
}

// ---- execution

static void progress(struct qp *q);

static void catch_up(void) // TCP sends what it referred to
{
	while (lates) {
		struct late *l = lates;
		lates = l->next;
		memcpy(l->to, l->from, l->n);
		free(l);
	}
}

// fail puts q in the error state. What it has is flushed; over iWARP the stream ends, for the peer, too.
static void fail(struct qp *q)
{
	if (q->ibv.state == IBV_QPS_ERR)
		return;
	q->ibv.state = IBV_QPS_ERR;
	if (!cfg.late_flush && !cfg.rxe && q->ibv.srq)
		happened(IBV_EVENT_QP_LAST_WQE_REACHED, &q->ibv);
	if (!cfg.late_flush) {
		while (q->reads) {
			struct work *w = q->reads;
			q->reads = w->next;
			done(q, w, IBV_WC_WR_FLUSH_ERR);
		}
		while (q->head) {
			struct work *w = q->head;
			q->head = w->next;
			done(q, w, IBV_WC_WR_FLUSH_ERR);
		}
		while (q->recv) {
			struct receive *r = q->recv;
			q->recv = r->next;
			q->recvs--;
			received(q, r, (struct ibv_wc){ .status = IBV_WC_WR_FLUSH_ERR });
		}
	}
	if (!cfg.iwarp)
		return;
	if (q->id && (q->id->state == CONNECTED || q->id->state == LEFT)) {
		q->id->state = OVER;
		tell(q->id, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, NULL);
	}
	if (q->peer) {
		struct qp *p = q->peer;
		q->peer = p->peer = NULL;
		fail(p);
	}
}

static int inside(uint64_t at, uint64_t n, uint64_t from, uint64_t len) { return at >= from && n <= len && at - from <= len - n; }

// local finds own memory; NULL: it is not registered.
static char *local(struct qp *q, const struct ibv_sge *s)
{
	for (struct mr *m = mrs; m; m = m->next)
		if (m->ibv.lkey == s->lkey)
			return m->ibv.pd == q->ibv.pd && inside(s->addr, s->length, (uintptr_t)m->ibv.addr, m->ibv.length) ? (char *)(uintptr_t)s->addr : NULL;
	return NULL;
}

// reach finds memory of q that its peer names. siw does not ask whether the peer may read it.
static char *reach(struct qp *q, uint32_t key, uint64_t at, uint64_t n, int access)
{
	if (cfg.siw)
		access &= ~IBV_ACCESS_REMOTE_READ;
	for (struct mr *m = mrs; m; m = m->next)
		if (m->ibv.rkey == key)
			return m->ibv.pd == q->ibv.pd && (m->access & access) == access && inside(at, n, (uintptr_t)m->ibv.addr, m->ibv.length) ? (char *)(uintptr_t)at : NULL;
	for (struct mw *w = mws; w; w = w->next)
		if (w->valid && w->ibv.rkey == key)
			return w->qp == q && (w->access & access) == access && inside(at, n, w->addr, w->len) ? (char *)(uintptr_t)at : NULL;
	return NULL;
}

static void move(struct work *w, char *to, const char *from, size_t n)
{
	if (cfg.siw && w->bytes >= SENDPAGE && !(w->wr.send_flags & (IBV_SEND_SIGNALED | IBV_SEND_INLINE))) {
		struct late *l = calloc(1, sizeof *l);
		*l = (struct late){ NULL, from, to, n };
		APPEND(lates, l);
		return;
	}
	memcpy(to, from, n);
}

// sinks reports whether a Read may go to the memory of w: to an iWARP card a Read Response, which is a tagged message (RFC 5040
// §4.5), is a Write of the peer. siw tells them apart.
static int sinks(struct qp *q, struct work *w)
{
	if (!cfg.iwarp || cfg.siw)
		return 1;
	for (int i = 0; i < w->wr.num_sge; i++)
		if (w->sge[i].length && !reach(q, w->sge[i].lkey, w->sge[i].addr, w->sge[i].length, IBV_ACCESS_REMOTE_WRITE))
			return 0;
	return 1;
}

// gather copies the memory of w to there, or from there if back is set. 0: some of it is not registered.
static int gather(struct qp *q, struct work *w, char *there, int back)
{
	if (w->copy) {
		memcpy(there, w->copy, w->bytes);
		return 1;
	}
	for (int i = 0; i < w->wr.num_sge; i++)
		if (w->sge[i].length && !local(q, &w->sge[i]))
			return 0;
	for (int i = 0; i < w->wr.num_sge; i++) {
		char *here = (char *)(uintptr_t)w->sge[i].addr;
		if (back)
			memcpy(here, there, w->sge[i].length);
		else
			move(w, there, here, w->sge[i].length);
		there += w->sge[i].length;
	}
	return 1;
}

static struct receive *take(struct qp *q)
{
	struct receive **at = q->ibv.srq ? &((struct srq *)q->ibv.srq)->head : &q->recv, *r = *at;

	if (!r)
		return NULL;
	*at = r->next;
	if (q->ibv.srq)
		((struct srq *)q->ibv.srq)->n--;
	else
		q->recvs--;
	return r;
}

// blame ends both ends because of what w wanted of the peer.
static enum ibv_wc_status blame(struct qp *q, enum ibv_wc_status status)
{
	struct qp *p = q->peer;

	if (p) {
		happened(IBV_EVENT_QP_ACCESS_ERR, &p->ibv);
		fail(p);
	}
	return cfg.iwarp ? IBV_WC_WR_FLUSH_ERR : status;
}

enum { WAIT = -1 };

static int deliver(struct qp *q, struct work *w)
{
	struct qp *p = q->peer;
	struct receive *r = take(p);
	struct ibv_wc wc = { .byte_len = w->bytes };
	uint64_t room = 0;

	if (!r)
		return cfg.iwarp ? blame(q, IBV_WC_RNR_RETRY_EXC_ERR) : WAIT;
	for (int i = 0; i < r->n; i++)
		room += r->sge[i].length;
	if (w->bytes > room) {
		wc.status = IBV_WC_LOC_LEN_ERR;
		received(p, r, wc);
		return blame(q, IBV_WC_REM_INV_REQ_ERR);
	}
	char *message = w->copy;
	if (!message) {
		for (int i = 0; i < w->wr.num_sge; i++)
			if (w->sge[i].length && !local(q, &w->sge[i])) {
				received(p, r, (struct ibv_wc){ .status = IBV_WC_WR_FLUSH_ERR });
				return IBV_WC_LOC_PROT_ERR;
			}
	}
	uint64_t at = 0; // into the pieces of r
	int k = 0;
	for (int i = 0; i < (message ? 1 : w->wr.num_sge); i++) {
		const char *from = message ? message : (char *)(uintptr_t)w->sge[i].addr;
		uint64_t left = message ? w->bytes : w->sge[i].length;
		while (left) {
			uint64_t n = r->sge[k].length - at;
			if (n > left)
				n = left;
			move(w, (char *)(uintptr_t)r->sge[k].addr + at, from, n);
			from += n, left -= n, at += n;
			if (at == r->sge[k].length)
				k++, at = 0;
		}
	}
	if (w->wr.opcode == IBV_WR_SEND_WITH_INV) {
		uint32_t key = w->wr.invalidate_rkey;
		struct mw *x = mws;
		while (x && !(x->valid && x->ibv.rkey == key && x->qp == p))
			x = x->next;
		if (x)
			x->valid = 0;
		int guarded = !x;
		if (cfg.siw)
			for (struct mr *m = mrs; m; m = m->next)
				if (m->ibv.rkey == key && m->ibv.pd == p->ibv.pd)
					guarded = 0, m->access = 0, m->ibv.lkey = m->ibv.rkey = 0;
		if (guarded) {
			wc.status = IBV_WC_LOC_QP_OP_ERR;
			received(p, r, wc);
			return blame(q, IBV_WC_REM_OP_ERR);
		}
		wc.wc_flags = IBV_WC_WITH_INV;
		wc.invalidated_rkey = key;
	}
	received(p, r, wc);
	return IBV_WC_SUCCESS;
}

static int bind_window(struct qp *q, struct work *w)
{
	struct mw *m = (struct mw *)w->wr.bind_mw.mw;

	if (m->valid)
		return IBV_WC_MW_BIND_ERR;
	m->valid = 1;
	m->qp = q;
	m->ibv.rkey = w->wr.bind_mw.rkey;
	m->addr = w->wr.bind_mw.bind_info.addr;
	m->len = w->wr.bind_mw.bind_info.length;
	m->access = w->wr.bind_mw.bind_info.mw_access_flags;
	return IBV_WC_SUCCESS;
}

static int execute(struct qp *q, struct work *w)
{
	char *there = NULL;

	if ((int)w->wr.opcode == broken_opcode) {
		broken_opcode = -1;
		return broken_status;
	}
	switch (w->wr.opcode) {
	case IBV_WR_BIND_MW:
		return bind_window(q, w);
	case IBV_WR_LOCAL_INV:
		for (struct mw *m = mws; m; m = m->next)
			if (m->valid && m->ibv.rkey == w->wr.invalidate_rkey && m->qp == q) {
				m->valid = 0;
				return IBV_WC_SUCCESS;
			}
		return IBV_WC_LOC_QP_OP_ERR;
	default:
		break;
	}
	if (!q->peer || q->peer->ibv.state < IBV_QPS_RTR || q->peer->ibv.state == IBV_QPS_ERR)
		return WAIT; // it is sent again and again
	q->responded = 0;
	q->peer->responded = w->wr.opcode == IBV_WR_RDMA_READ;
	switch (w->wr.opcode) {
	case IBV_WR_RDMA_WRITE:
		if (w->bytes && !(there = reach(q->peer, w->wr.wr.rdma.rkey, w->wr.wr.rdma.remote_addr, w->bytes, IBV_ACCESS_REMOTE_WRITE)))
			return blame(q, IBV_WC_REM_ACCESS_ERR);
		return gather(q, w, there, 0) ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
	case IBV_WR_RDMA_READ:
		catch_up();
		if (w->bytes && !(there = reach(q->peer, w->wr.wr.rdma.rkey, w->wr.wr.rdma.remote_addr, w->bytes, IBV_ACCESS_REMOTE_READ)))
			return blame(q, IBV_WC_REM_ACCESS_ERR);
		return sinks(q, w) && gather(q, w, there, 1) ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
	default:
		return deliver(q, w);
	}
}

// ended takes the outcome of w, which is in no list any more. 0: nothing more is to be done.
static int ended(struct qp *q, struct work *w, int status)
{
	int failed = q->ibv.state == IBV_QPS_ERR; // by execute: the stream has ended

	done(q, w, failed && status == IBV_WC_SUCCESS ? IBV_WC_WR_FLUSH_ERR : status);
	if (status != IBV_WC_SUCCESS)
		fail(q);
	return q->ibv.state == IBV_QPS_RTS;
}

static void answer_reads(struct qp *q)
{
	while (q->reads && q->ibv.state == IBV_QPS_RTS && !holding) {
		struct work *w = q->reads;
		q->reads = w->next;
		int status = execute(q, w);
		if (status == WAIT) {
			w->next = q->reads;
			q->reads = w;
			return;
		}
		if (!ended(q, w, status))
			return;
	}
}

static void progress(struct qp *q)
{
	while (q->head && q->ibv.state == IBV_QPS_RTS && holding != 1) {
		struct work *w = q->head;
		if (w->wr.send_flags & IBV_SEND_FENCE || !cfg.late_reads)
			answer_reads(q);
		if (q->head != w)
			return;
		if (w->wr.opcode == IBV_WR_RDMA_READ && (cfg.late_reads || holding)) {
			q->head = w->next;
			APPEND(q->reads, w);
			pthread_cond_broadcast(&stopped);
			continue;
		}
		q->head = w->next;
		int status = execute(q, w);
		if (status == WAIT) {
			w->next = q->head;
			q->head = w;
			return;
		}
		if (!ended(q, w, status))
			return;
	}
}

static void progress_all(void)
{
	for (struct qp *q = qps; q; q = q->next) {
		answer_reads(q);
		progress(q);
	}
}

// ---- libibverbs

static struct ibv_device **get_device_list(int *n)
{
	LOCKED;
	if (fails("ibv_get_device_list"))
		return NULL;
	struct ibv_device **list = calloc(2, sizeof *list);
	list[0] = &device;
	if (n)
		*n = 1;
	return list;
}
static void free_device_list(struct ibv_device **list) { free(list); }
static const char *get_device_name(struct ibv_device *d) { return d->name; }

static int poll_cq(struct ibv_cq *c, int n, struct ibv_wc *wc);
static int req_notify(struct ibv_cq *c, int solicited);
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
static int dealloc_mw(struct ibv_mw *mw);

static struct context *open_context(void)
{
	struct context *c = calloc(1, sizeof *c);
	bell_make(&c->bell);
	c->ibv.device = &device;
	c->ibv.async_fd = c->bell.out;
	c->ibv.cmd_fd = -1;
	c->ibv.ops.poll_cq = poll_cq;
	c->ibv.ops.req_notify_cq = req_notify;
	c->ibv.ops.post_send = post_send;
	c->ibv.ops.post_recv = post_recv;
	c->ibv.ops.post_srq_recv = post_srq_recv;
	c->ibv.ops.alloc_mw = alloc_mw;
	c->ibv.ops.dealloc_mw = dealloc_mw;
	return c;
}

static struct ibv_context *open_device(struct ibv_device *d)
{
	LOCKED;
	(void)d;
	if (fails("ibv_open_device"))
		return NULL;
	objects++;
	return &(app_context = open_context())->ibv;
}

static int close_device(struct ibv_context *ctx)
{
	LOCKED;
	struct context *c = (struct context *)ctx;
	if (c == app_context)
		app_context = NULL;
	bell_close(&c->bell);
	drop(c);
	return 0;
}

static int query_device(struct ibv_context *ctx, struct ibv_device_attr *a)
{
	LOCKED;
	(void)ctx;
	if (fails("ibv_query_device"))
		return errno;
	memset(a, 0, sizeof *a);
	a->max_qp = 1000;
	a->max_qp_wr = cfg.max_work;
	a->max_sge = cfg.max_sge;
	a->max_srq_sge = cfg.max_sge;
	a->max_sge_rd = cfg.iwarp ? 1 : cfg.max_sge;
	a->max_cqe = 1 << 20;
	a->max_qp_rd_atom = a->max_qp_init_rd_atom = 16;
	a->phys_port_cnt = 1;
	a->vendor_id = cfg.siw ? SIW_VENDOR : cfg.rxe ? RXE_VENDOR : 1;
	a->device_cap_flags = cfg.no_invalidate ? 0 : IBV_DEVICE_MEM_MGT_EXTENSIONS;
	if (!cfg.iwarp || cfg.windows) {
		a->max_mw = 1000;
		a->device_cap_flags |= IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	}
	return 0;
}

static int query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	LOCKED;
	(void)ctx, (void)port;
	if (fails("ibv_query_port"))
		return errno;
	struct ibv_port_attr *a = (struct ibv_port_attr *)attr;
	a->state = IBV_PORT_ACTIVE;
	a->max_msg_sz = 1 << 30;
	return 0;
}

// of_queue_pair returns the queue pair of an event, or NULL: it is about something else.
static struct qp *of_queue_pair(struct ibv_async_event *e)
{
	switch (e->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return (struct qp *)e->element.qp;
	default:
		return NULL;
	}
}

static int get_async_event(struct ibv_context *ctx, struct ibv_async_event *e)
{
	LOCKED;
	struct context *c = (struct context *)ctx;
	char b;
	if (read(c->bell.out, &b, 1) != 1 || !c->n) { // it was that of a queue pair that is gone
		errno = EAGAIN;
		return -1;
	}
	*e = c->queue[0];
	memmove(&c->queue[0], &c->queue[1], --c->n * sizeof c->queue[0]);
	struct qp *q = of_queue_pair(e);
	if (q)
		q->unacked++;
	if (q && q->part && e->event_type == IBV_EVENT_QP_LAST_WQE_REACHED) {
		struct receive *r = q->part;
		q->part = NULL;
		received(q, r, (struct ibv_wc){ .status = IBV_WC_WR_FLUSH_ERR });
	}
	return 0;
}

static pthread_cond_t acked = PTHREAD_COND_INITIALIZER;
static void ack_async_event(struct ibv_async_event *e)
{
	LOCKED;
	struct qp *q = of_queue_pair(e);
	if (q && !--q->unacked)
		pthread_cond_broadcast(&acked);
}
static const char *event_type_str(enum ibv_event_type t) { return t == IBV_EVENT_DEVICE_FATAL ? "fatal error" : "event"; }

static struct ibv_pd *alloc_pd(struct ibv_context *ctx)
{
	LOCKED;
	if (fails("ibv_alloc_pd"))
		return NULL;
	struct ibv_pd *pd = make(sizeof *pd);
	pd->context = ctx;
	return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	LOCKED;
	for (struct mr *m = mrs; m; m = m->next)
		if (m->ibv.pd == pd)
			return EBUSY;
	for (struct qp *q = qps; q; q = q->next)
		if (q->ibv.pd == pd)
			return EBUSY;
	drop(pd);
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t n, int access)
{
	LOCKED;
	if (fails("ibv_reg_mr"))
		return NULL;
	struct mr *m = make(sizeof *m);
	m->ibv = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = n };
	m->ibv.lkey = m->ibv.rkey = ++serial << 8;
	m->access = access;
	APPEND(mrs, m);
	return &m->ibv;
}

static int dereg_mr(struct ibv_mr *m)
{
	LOCKED;
	if (fails("ibv_dereg_mr"))
		return errno;
	catch_up();
	REMOVE(mrs, (struct mr *)m);
	drop(m);
	return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	LOCKED;
	if (fails("ibv_alloc_mw"))
		return NULL;
	struct mw *w = make(sizeof *w);
	w->ibv = (struct ibv_mw){ .context = pd->context, .pd = pd, .type = type, .rkey = ++serial << 8 };
	APPEND(mws, w);
	return &w->ibv;
}

static int dealloc_mw(struct ibv_mw *w)
{
	LOCKED;
	REMOVE(mws, (struct mw *)w);
	drop(w);
	return 0;
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *ctx)
{
	LOCKED;
	if (fails("ibv_create_comp_channel"))
		return NULL;
	struct channel *c = make(sizeof *c);
	bell_make(&c->bell);
	c->ibv.context = ctx;
	c->ibv.fd = c->bell.out;
	return &c->ibv;
}

static int destroy_comp_channel(struct ibv_comp_channel *c)
{
	LOCKED;
	bell_close(&((struct channel *)c)->bell);
	drop(c);
	return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *ctx, int n, void *context, struct ibv_comp_channel *c, int vector)
{
	LOCKED;
	(void)vector;
	if (fails("ibv_create_cq"))
		return NULL;
	struct cq *q = make(sizeof *q);
	q->ibv.context = ctx;
	q->ibv.cq_context = context;
	q->ibv.channel = c;
	q->ibv.cqe = n;
	return &q->ibv;
}

static int destroy_cq(struct ibv_cq *c)
{
	LOCKED;
	free(((struct cq *)c)->wc);
	drop(c);
	return 0;
}

static int get_cq_event(struct ibv_comp_channel *c, struct ibv_cq **cq, void **context)
{
	if (read(c->fd, cq, sizeof *cq) != sizeof *cq)
		return -1;
	*context = (*cq)->cq_context;
	return 0;
}
static void ack_cq_events(struct ibv_cq *c, unsigned int n) { (void)c, (void)n; }
static const char *wc_status_str(enum ibv_wc_status s) { return s == IBV_WC_RETRY_EXC_ERR ? "transport retry counter exceeded" : "an error"; }

static int poll_cq(struct ibv_cq *c, int n, struct ibv_wc *wc)
{
	LOCKED;
	struct cq *q = (struct cq *)c;
	for (struct qp *x = qps; x; x = x->next) {
		if (x->ibv.recv_cq == c && q->n)
			catch_up();
		if (cfg.late_reads && x->ibv.send_cq == c && !q->n)
			answer_reads(x);
	}
	if (n > q->n)
		n = q->n;
	memcpy(wc, q->wc, n * sizeof *wc);
	memmove(q->wc, q->wc + n, (q->n -= n) * sizeof *wc);
	return n;
}

static int req_notify(struct ibv_cq *c, int solicited)
{
	LOCKED;
	(void)solicited;
	if (fails("ibv_req_notify_cq"))
		return errno;
	((struct cq *)c)->armed = 1;
	return 0;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	LOCKED;
	if (fails("ibv_create_qp"))
		return NULL;
	if (a->cap.max_inline_data > cfg.max_inline) {
		errno = EINVAL;
		return NULL;
	}
	struct qp *q = make(sizeof *q);
	q->ibv = (struct ibv_qp){
		.context = pd->context, .pd = pd, .send_cq = a->send_cq, .recv_cq = a->recv_cq, .srq = a->srq,
		.qp_num = ++serial, .state = IBV_QPS_RESET, .qp_type = a->qp_type,
	};
	q->max_send = a->cap.max_send_wr;
	q->max_recv = a->cap.max_recv_wr;
	q->max_inline = a->cap.max_inline_data;
	APPEND(qps, q);
	return &q->ibv;
}

// forget throws away what q has completed.
static void forget(struct ibv_cq *cq, struct qp *q)
{
	struct cq *c = (struct cq *)cq;
	int n = 0;

	for (int i = 0; i < c->n; i++)
		if (c->wc[i].qp_num != q->ibv.qp_num)
			c->wc[n++] = c->wc[i];
	c->n = n;
}

static int destroy_qp(struct ibv_qp *qp)
{
	LOCKED;
	struct qp *q = (struct qp *)qp;
	catch_up();
	q->lost = 1; // it completes nothing any more
	fail(q);
	struct context *c = app_context;
	for (int i = 0; c && i < c->n;)
		if (of_queue_pair(&c->queue[i]) == q)
			memmove(&c->queue[i], &c->queue[i + 1], (--c->n - i) * sizeof c->queue[0]);
		else
			i++;
	while (q->unacked)
		pthread_cond_wait(&acked, &big);
	if (cfg.clean) {
		forget(q->ibv.send_cq, q);
		forget(q->ibv.recv_cq, q);
	}
	free(q->part);
	if (q->peer)
		q->peer->peer = NULL;
	if (q->id)
		q->id->qpn = 0;
	while (q->head) {
		struct work *w = q->head;
		q->head = w->next;
		done(q, w, IBV_WC_WR_FLUSH_ERR);
	}
	while (q->reads) {
		struct work *w = q->reads;
		q->reads = w->next;
		done(q, w, IBV_WC_WR_FLUSH_ERR);
	}
	while (q->recv) {
		struct receive *r = q->recv;
		q->recv = r->next;
		free(r);
	}
	REMOVE(qps, q);
	drop(q);
	return 0;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask)
{
	LOCKED;
	if (fails(a->qp_state == IBV_QPS_ERR ? "error" : "ibv_modify_qp"))
		return errno;
	if (!(mask & IBV_QP_STATE))
		return 0;
	if (a->qp_state == IBV_QPS_ERR) {
		wait_while(2);
		fail((struct qp *)qp);
		return 0;
	}
	qp->state = a->qp_state;
	progress_all();
	return 0;
}

static int query_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init)
{
	LOCKED;
	(void)mask, (void)init;
	a->qp_state = qp->state;
	return 0;
}

static struct ibv_srq *create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
	LOCKED;
	if (fails("ibv_create_srq"))
		return NULL;
	struct srq *s = make(sizeof *s);
	s->ibv.context = pd->context;
	s->ibv.pd = pd;
	s->max = a->attr.max_wr;
	return &s->ibv;
}

static int destroy_srq(struct ibv_srq *srq)
{
	LOCKED;
	struct srq *s = (struct srq *)srq;
	while (s->head) {
		struct receive *r = s->head;
		s->head = r->next;
		free(r);
	}
	drop(s);
	return 0;
}

static struct receive *receive_of(const struct ibv_recv_wr *wr)
{
	struct receive *r = calloc(1, sizeof *r);
	r->id = wr->wr_id;
	r->n = wr->num_sge;
	memcpy(r->sge, wr->sg_list, wr->num_sge * sizeof *wr->sg_list);
	return r;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	LOCKED;
	struct qp *q = (struct qp *)qp;
	for (; wr; wr = wr->next) {
		if (fails("ibv_post_recv") || (q->recvs == q->max_recv && (errno = ENOMEM)) || (cfg.siw && !wr->num_sge && (errno = EINVAL))) {
			*bad = wr;
			return errno;
		}
		struct receive *r = receive_of(wr);
		if (q->ibv.state == IBV_QPS_ERR) {
			received(q, r, (struct ibv_wc){ .status = IBV_WC_WR_FLUSH_ERR });
			continue;
		}
		APPEND(q->recv, r);
		q->recvs++;
	}
	progress_all();
	return 0;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	LOCKED;
	struct srq *s = (struct srq *)srq;
	for (; wr; wr = wr->next) {
		if (fails("ibv_post_srq_recv") || (s->n == s->max && (errno = ENOMEM))) {
			*bad = wr;
			return errno;
		}
		struct receive *r = receive_of(wr);
		APPEND(s->head, r);
		s->n++;
	}
	progress_all();
	return 0;
}

// wrong says why a device takes no such work request; 0: it does.
static int wrong(struct qp *q, struct ibv_send_wr *wr, uint32_t bytes)
{
	if (fails("ibv_post_send"))
		return errno;
	if (q->sends == q->max_send)
		return ENOMEM;
	if (q->ibv.state != IBV_QPS_RTS && q->ibv.state != IBV_QPS_ERR)
		return EINVAL;
	if (wr->send_flags & IBV_SEND_INLINE && bytes > (uint32_t)q->max_inline)
		return EINVAL;
	if (cfg.siw && wr->send_flags & IBV_SEND_INLINE && wr->opcode == IBV_WR_SEND_WITH_INV)
		return EINVAL;
	if (cfg.siw && wr->opcode == IBV_WR_RDMA_READ && (wr->send_flags & IBV_SEND_FENCE || wr->num_sge != 1))
		return EINVAL;
	if (cfg.iwarp && wr->opcode == IBV_WR_RDMA_READ && wr->num_sge > 1)
		return EINVAL; // a Read Request names one sink (RFC 5040 §4.4)
	if (cfg.no_invalidate && (wr->opcode == IBV_WR_SEND_WITH_INV || wr->opcode == IBV_WR_LOCAL_INV))
		return EOPNOTSUPP;
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	LOCKED;
	struct qp *q = (struct qp *)qp;
	int taken = 0;
	for (; wr; wr = wr->next) {
		uint32_t bytes = 0;
		for (int i = 0; i < wr->num_sge; i++)
			bytes += wr->sg_list[i].length;
		int err = wrong(q, wr, bytes);
		if (err) {
			*bad = wr;
			if (cfg.siw && taken)
				err = fails("doorbell") ? errno : 0; // what the kernel says of those before
			progress(q);
			return err;
		}
		taken = 1;
		struct work *w = calloc(1, sizeof *w);
		w->wr = *wr;
		w->bytes = bytes;
		memcpy(w->sge, wr->sg_list, wr->num_sge * sizeof *wr->sg_list);
		w->wr.sg_list = NULL;
		if (wr->send_flags & IBV_SEND_INLINE) {
			char *to = w->copy = malloc(bytes + 1);
			for (int i = 0; i < wr->num_sge; to += wr->sg_list[i++].length)
				memcpy(to, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		}
		q->sends++;
		if (q->ibv.state == IBV_QPS_ERR && !cfg.late_flush) {
			done(q, w, IBV_WC_WR_FLUSH_ERR);
			continue;
		}
		APPEND(q->head, w);
	}
	if (fails("doorbell"))
		return errno; // all are taken, and the kernel does not know
	progress(q);
	return 0;
}

// ---- librdmacm

static struct rdma_event_channel *create_event_channel(void)
{
	LOCKED;
	if (fails("rdma_create_event_channel"))
		return NULL;
	struct cmchannel *c = make(sizeof *c);
	bell_make(&c->bell);
	c->ibv.fd = c->bell.out;
	return &c->ibv;
}

static void destroy_event_channel(struct rdma_event_channel *ch)
{
	LOCKED;
	struct cmchannel *c = (struct cmchannel *)ch;
	while (c->head) {
		struct event *e = c->head;
		c->head = e->next;
		free(e);
	}
	bell_close(&c->bell);
	drop(c);
}

static int create_id(struct rdma_event_channel *c, struct rdma_cm_id **out, void *context, enum rdma_port_space ps)
{
	LOCKED;
	if (fails("rdma_create_id"))
		return -1;
	struct cmid *id = make(sizeof *id);
	id->ibv.channel = c;
	id->ibv.context = context;
	id->ibv.ps = ps;
	APPEND(ids, id);
	*out = &id->ibv;
	return 0;
}

static struct qp *qp_of(uint32_t n)
{
	struct qp *q = qps;
	while (n && q && q->ibv.qp_num != n)
		q = q->next;
	return n ? q : NULL;
}

// part ends a connection at the end of id; the other end has to do the same.
static void part(struct cmid *id)
{
	struct cmid *p = id->peer;

	id->state = p && p->state == CONNECTED ? LEFT : OVER;
	if (p && p->state == CONNECTED)
		tell(p, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, NULL);
	if (p && p->state == LEFT) {
		p->state = OVER;
		tell(p, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, NULL);
		tell(id, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, NULL);
	}
	struct qp *q = qp_of(id->qpn);
	if (cfg.blames && q && q->peer && q->peer->responded)
		happened(IBV_EVENT_QP_REQ_ERR, &q->peer->ibv);
	if (cfg.iwarp && q)
		fail(q);
}

static int destroy_id(struct rdma_cm_id *ibv)
{
	LOCKED;
	struct cmid *id = (struct cmid *)ibv;
	if (id->state == LISTENING)
		wait_while(1);
	if (id->state == CONNECTED)
		part(id);
	if (id->peer) {
		if (id->state == ASKED) // nobody has answered
			tell(id->peer, RDMA_CM_EVENT_REJECTED, cfg.iwarp ? -ECONNRESET : CONSUMER_REJECT, NULL, NULL);
		id->peer->peer = NULL;
	}
	struct cmchannel *c = (struct cmchannel *)ibv->channel;
	for (struct event **at = &c->head; *at;) {
		struct event *e = *at;
		if (e->e.id != ibv) {
			at = &e->next;
			continue;
		}
		*at = e->next;
		free(e);
	}
	for (struct qp *q = qps; q; q = q->next)
		if (q->id == id)
			q->id = NULL;
	REMOVE(ids, id);
	drop(id);
	return 0;
}

static int port_of(struct sockaddr *a) { return ntohs(((struct sockaddr_in *)a)->sin_port); }
static void set_port(struct sockaddr *a, int p) { ((struct sockaddr_in *)a)->sin_port = htons(p); }

static void copy_addr(void *to, struct sockaddr *from)
{
	memcpy(to, from, from->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
}

static int any(struct sockaddr *a)
{
	static const struct in6_addr none;
	return a->sa_family == AF_INET ? !((struct sockaddr_in *)a)->sin_addr.s_addr
				       : !memcmp(&((struct sockaddr_in6 *)a)->sin6_addr, &none, sizeof none);
}

static int bind_addr(struct rdma_cm_id *id, struct sockaddr *a)
{
	LOCKED;
	if (fails("rdma_bind_addr"))
		return -1;
	copy_addr(&id->route.addr.src_storage, a);
	if (!port_of(a))
		set_port(&id->route.addr.src_addr, ++next_port);
	if (!any(a)) {
		id->verbs = &cm_context->ibv;
		id->port_num = 1;
	}
	return 0;
}

static int listen_id(struct rdma_cm_id *id, int backlog)
{
	LOCKED;
	(void)backlog;
	if (fails("rdma_listen"))
		return -1;
	for (struct cmid *x = ids; x; x = x->next)
		if (x->state == LISTENING && port_of(&x->ibv.route.addr.src_addr) == port_of(&id->route.addr.src_addr)) {
			errno = EADDRINUSE;
			return -1;
		}
	((struct cmid *)id)->state = LISTENING;
	return 0;
}

static int resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int ms)
{
	LOCKED;
	(void)src, (void)ms;
	if (fails("rdma_resolve_addr"))
		return -1;
	copy_addr(&id->route.addr.dst_storage, dst);
	copy_addr(&id->route.addr.src_storage, dst);
	set_port(&id->route.addr.src_addr, ++next_port);
	id->verbs = &cm_context->ibv;
	id->port_num = 1;
	if (fails("address"))
		tell((struct cmid *)id, RDMA_CM_EVENT_ADDR_ERROR, -errno, NULL, NULL);
	else
		tell((struct cmid *)id, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL, NULL);
	return 0;
}

static int resolve_route(struct rdma_cm_id *id, int ms)
{
	LOCKED;
	(void)ms;
	if (fails("rdma_resolve_route"))
		return -1;
	if (fails("route"))
		tell((struct cmid *)id, RDMA_CM_EVENT_ROUTE_ERROR, -errno, NULL, NULL);
	else if (!fails("silence"))
		tell((struct cmid *)id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, NULL);
	return 0;
}

static int connect_id(struct rdma_cm_id *ibv, struct rdma_conn_param *p)
{
	LOCKED;
	struct cmid *id = (struct cmid *)ibv, *l = ids;
	if (fails("rdma_connect"))
		return -1;
	while (l && !(l->state == LISTENING && port_of(&l->ibv.route.addr.src_addr) == port_of(&ibv->route.addr.dst_addr)))
		l = l->next;
	id->qpn = p->qp_num;
	if (!l) {
		tell(id, RDMA_CM_EVENT_REJECTED, cfg.iwarp ? -ECONNREFUSED : INVALID_SERVICE, NULL, NULL);
		return 0;
	}
	struct cmid *child = make(sizeof *child);
	child->ibv.channel = l->ibv.channel;
	child->ibv.verbs = &cm_context->ibv;
	child->ibv.port_num = 1;
	copy_addr(&child->ibv.route.addr.src_storage, &ibv->route.addr.dst_addr);
	copy_addr(&child->ibv.route.addr.dst_storage, &ibv->route.addr.src_addr);
	child->state = ASKED;
	child->peer = id;
	id->peer = child;
	id->state = ASKING;
	APPEND(ids, child);
	struct rdma_conn_param seen = *p;
	seen.initiator_depth = p->responder_resources;
	seen.responder_resources = p->initiator_depth;
	id->depth = p->initiator_depth;
	tell(child, RDMA_CM_EVENT_CONNECT_REQUEST, 0, l, &seen);
	return 0;
}

static int accept_id(struct rdma_cm_id *ibv, struct rdma_conn_param *p)
{
	LOCKED;
	struct cmid *id = (struct cmid *)ibv, *c = id->peer;
	if (fails("rdma_accept"))
		return -1;
	if (!c || c->state != ASKING) {
		errno = EINVAL;
		return -1;
	}
	id->qpn = p->qp_num;
	id->state = c->state = CONNECTED;
	struct qp *mine = qp_of(id->qpn), *theirs = qp_of(c->qpn);
	if (mine && theirs) {
		mine->peer = theirs;
		theirs->peer = mine;
		mine->id = id;
		theirs->id = c;
	}
	struct rdma_conn_param seen = *p;
	seen.initiator_depth = p->responder_resources;
	seen.responder_resources = p->initiator_depth;
	if (cfg.iwarp) {
		if (mine)
			mine->ibv.state = IBV_QPS_RTS;
		if (theirs)
			theirs->ibv.state = IBV_QPS_RTS;
		tell(id, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, NULL);
	}
	tell(c, cfg.iwarp ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_CONNECT_RESPONSE, 0, NULL, &seen);
	return 0;
}

static int establish_id(struct rdma_cm_id *ibv)
{
	LOCKED;
	struct cmid *id = (struct cmid *)ibv;
	if (fails("rdma_establish"))
		return -1;
	if (id->peer)
		tell(id->peer, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, NULL);
	return 0;
}

static int reject_id(struct rdma_cm_id *ibv, const void *data, uint8_t n)
{
	LOCKED;
	struct cmid *id = (struct cmid *)ibv;
	struct rdma_conn_param p = { .private_data = data, .private_data_len = n };
	if (fails("rdma_reject"))
		return -1;
	if (id->state == ASKED && id->peer)
		tell(id->peer, RDMA_CM_EVENT_REJECTED, cfg.iwarp ? -ECONNRESET : CONSUMER_REJECT, NULL, &p);
	id->state = OVER;
	return 0;
}

static int disconnect_id(struct rdma_cm_id *ibv)
{
	LOCKED;
	struct cmid *id = (struct cmid *)ibv;
	if (id->state != CONNECTED) {
		errno = EINVAL;
		return -1;
	}
	part(id);
	return 0;
}

static int get_cm_event(struct rdma_event_channel *ch, struct rdma_cm_event **out)
{
	LOCKED;
	struct cmchannel *c = (struct cmchannel *)ch;
	char b;
	ssize_t n = read(c->bell.out, &b, 1);
	(void)n;
	if (!c->head) {
		errno = EAGAIN;
		return -1;
	}
	struct event *e = c->head;
	c->head = e->next;
	*out = &e->e;
	return 0;
}

static int ack_cm_event(struct rdma_cm_event *e)
{
	free((char *)e - offsetof(struct event, e));
	return 0;
}

static const char *event_str(enum rdma_cm_event_type t) { return t == RDMA_CM_EVENT_DISCONNECTED ? "disconnected" : "an event"; }
static int set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t n) { (void)id, (void)level, (void)name, (void)value, (void)n; return 0; }

static int init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *a, int *mask)
{
	LOCKED;
	(void)id;
	if (fails("rdma_init_qp_attr"))
		return -1;
	*mask = IBV_QP_STATE;
	if (a->qp_state == IBV_QPS_INIT)
		*mask |= IBV_QP_ACCESS_FLAGS;
	if (a->qp_state == IBV_QPS_RTR)
		*mask |= IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC;
	if (a->qp_state == IBV_QPS_RTS)
		*mask |= IBV_QP_MAX_QP_RD_ATOMIC;
	return 0;
}

// ---- what tests do

#define ROW(name, f) { name, (void *)f }
static const struct { const char *name; void *f; } table[] = {
	ROW("ibv_get_device_list", get_device_list), ROW("ibv_free_device_list", free_device_list), ROW("ibv_get_device_name", get_device_name),
	ROW("ibv_open_device", open_device), ROW("ibv_close_device", close_device), ROW("ibv_query_device", query_device),
	ROW("ibv_query_port", query_port), ROW("ibv_get_async_event", get_async_event), ROW("ibv_ack_async_event", ack_async_event),
	ROW("ibv_event_type_str", event_type_str), ROW("ibv_alloc_pd", alloc_pd), ROW("ibv_dealloc_pd", dealloc_pd), ROW("ibv_reg_mr", reg_mr),
	ROW("ibv_dereg_mr", dereg_mr), ROW("ibv_create_comp_channel", create_comp_channel), ROW("ibv_destroy_comp_channel", destroy_comp_channel),
	ROW("ibv_create_cq", create_cq), ROW("ibv_destroy_cq", destroy_cq), ROW("ibv_get_cq_event", get_cq_event),
	ROW("ibv_ack_cq_events", ack_cq_events), ROW("ibv_wc_status_str", wc_status_str), ROW("ibv_create_qp", create_qp),
	ROW("ibv_destroy_qp", destroy_qp), ROW("ibv_modify_qp", modify_qp), ROW("ibv_query_qp", query_qp), ROW("ibv_create_srq", create_srq),
	ROW("ibv_destroy_srq", destroy_srq), ROW("rdma_create_event_channel", create_event_channel),
	ROW("rdma_destroy_event_channel", destroy_event_channel), ROW("rdma_create_id", create_id), ROW("rdma_destroy_id", destroy_id),
	ROW("rdma_bind_addr", bind_addr), ROW("rdma_listen", listen_id), ROW("rdma_resolve_addr", resolve_addr),
	ROW("rdma_resolve_route", resolve_route), ROW("rdma_connect", connect_id), ROW("rdma_accept", accept_id), ROW("rdma_reject", reject_id),
	ROW("rdma_disconnect", disconnect_id), ROW("rdma_establish", establish_id), ROW("rdma_get_cm_event", get_cm_event),
	ROW("rdma_ack_cm_event", ack_cm_event), ROW("rdma_event_str", event_str), ROW("rdma_set_option", set_option),
	ROW("rdma_init_qp_attr", init_qp_attr),
};

void *fake_find(const char *name)
{
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (!strcmp(table[i].name, name))
			return table[i].f;
	return NULL;
}

void fake_begin(const struct fake_config *c)
{
	LOCKED;

	free((void *)cfg.node);
	cfg = *c;
	cfg.node = strdup(c->node);
	objects = holding = keeping = muted = 0;
	broken_opcode = -1;
	next_port = 20000;
	for (int i = 0; i < 16; i++) {
		free((void *)failures[i].function);
		failures[i].function = NULL;
	}
	memset(&device, 0, sizeof device);
	device.transport_type = c->iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
	strcpy(device.name, "fake0");
	strncpy(device.dev_path, c->node, sizeof device.dev_path - 1);
	if (!cm_context)
		cm_context = open_context();
}

void fake_fail(const char *function, int err, int after)
{
	LOCKED;
	int at = -1;
	for (int i = 0; i < 16; i++)
		if (failures[i].function && !strcmp(failures[i].function, function))
			at = i;
	for (int i = 0; at < 0 && i < 16; i++)
		if (!failures[i].function)
			at = i;
	if (at < 0)
		abort();
	free((void *)failures[at].function);
	failures[at].function = err ? strdup(function) : NULL;
	failures[at].err = err;
	failures[at].after = after;
}

void fake_hold(int on)
{
	LOCKED;
	holding = on;
	progress_all();
}

void fake_keep(int on)
{
	LOCKED;
	keeping = on;
	pthread_cond_broadcast(&kept);
}

void fake_await_kept(void)
{
	LOCKED;
	while (!waiting)
		pthread_cond_wait(&stopped, &big);
}

int fake_sinks(struct fake_sink *out, int n, uint64_t octets)
{
	LOCKED;
	for (;; pthread_cond_wait(&stopped, &big)) {
		uint64_t sum = 0;
		int k = 0;
		for (struct qp *q = qps; q; q = q->next)
			for (struct work *w = q->reads; w; w = w->next)
				for (int i = 0; i < w->wr.num_sge; i++, k++) {
					sum += w->sge[i].length;
					if (k < n)
						out[k] = (struct fake_sink){ w->sge[i].lkey, w->sge[i].length, (void *)(uintptr_t)w->sge[i].addr };
				}
		if (sum >= octets)
			return k;
	}
}

void fake_mute(int on)
{
	LOCKED;
	muted = on;
	for (struct cmid *id = ids; id && !on; id = id->next) // what came meanwhile
		if (write(((struct cmchannel *)id->ibv.channel)->bell.in, "", 1) < 0)
			abort();
}

void fake_break(int opcode, int status)
{
	LOCKED;
	broken_opcode = opcode;
	broken_status = status;
}

static struct qp *latest(void)
{
	struct qp *q = qps;
	while (q && q->next)
		q = q->next;
	return q;
}

void fake_async(int type)
{
	LOCKED;
	struct qp *q = latest();
	happened(type, q ? &q->ibv : NULL);
}

void fake_lose_queue_pair(void)
{
	LOCKED;
	latest()->lost = 1;
}

void fake_removal(void)
{
	LOCKED;
	for (struct cmid *id = ids; id; id = id->next)
		tell(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, NULL);
}

int fake_part(void)
{
	LOCKED;
	struct qp *q = latest();
	q->part = take(q);
	return q->part != NULL;
}

int fake_end(int seconds)
{
	LOCKED;
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += seconds;
	while (objects && !pthread_cond_timedwait(&dropped, &big, &until)) {}
	return objects;
}
