//go:build verbs && cgo && linux

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port

#define VERBS(X) \
	X(ibv_get_device_list) X(ibv_free_device_list) X(ibv_get_device_name) X(ibv_open_device) \
	X(ibv_close_device) X(ibv_query_device) X(ibv_query_port) X(ibv_get_async_event) \
	X(ibv_ack_async_event) X(ibv_event_type_str) X(ibv_alloc_pd) X(ibv_dealloc_pd) X(ibv_reg_mr) \
	X(ibv_dereg_mr) X(ibv_create_comp_channel) X(ibv_destroy_comp_channel) X(ibv_create_cq) \
	X(ibv_destroy_cq) X(ibv_get_cq_event) X(ibv_ack_cq_events) X(ibv_wc_status_str) \
	X(ibv_create_qp) X(ibv_destroy_qp) X(ibv_modify_qp) X(ibv_query_qp) X(ibv_create_srq) \
	X(ibv_destroy_srq)
#define CM(X) \
	X(rdma_create_event_channel) X(rdma_destroy_event_channel) X(rdma_create_id) \
	X(rdma_destroy_id) X(rdma_bind_addr) X(rdma_listen) X(rdma_resolve_addr) \
	X(rdma_resolve_route) X(rdma_connect) X(rdma_accept) X(rdma_reject) X(rdma_disconnect) \
	X(rdma_establish) X(rdma_get_cm_event) X(rdma_ack_cm_event) X(rdma_event_str) \
	X(rdma_set_option) X(rdma_init_qp_attr)

#define FIELD(f) __typeof__(&f) f;
static struct { VERBS(FIELD) CM(FIELD) } lib;

struct symbol { const char *name; void **at; };
#define ROW(f) { #f, (void **)&lib.f },

static const char *load(const char *file, const struct symbol *s, size_t n, os_find *find)
{
	void *h = find ? NULL : dlopen(file, RTLD_NOW | RTLD_GLOBAL);
	if (!h && !find)
		return file;
	for (size_t i = 0; i < n; i++)
		if (!(*s[i].at = find ? find(s[i].name) : dlsym(h, s[i].name)))
			return s[i].name;
	return NULL;
}

const char *os_load(os_find *find)
{
	static const struct symbol verbs[] = { VERBS(ROW) }, cm[] = { CM(ROW) };
	const char *missing = load("libibverbs.so.1", verbs, sizeof verbs / sizeof *verbs, find);

	return missing ? missing : load("librdmacm.so.1", cm, sizeof cm / sizeof *cm, find);
}

// failed is the result of functions that set errno.
static int failed(int rc) { return rc == 0 ? 0 : errno ? -errno : -EIO; }

// code is the result of functions that return an errno. Some providers return it negated, and
// some functions return -1 and set it.
static int code(int rc) { return rc == -1 ? failed(rc) : rc < 0 ? rc : -rc; }

static int nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 ? flags : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

struct ibv_device **os_devices(int *n) { return lib.ibv_get_device_list(n); }
void os_free_devices(struct ibv_device **list) { lib.ibv_free_device_list(list); }
const char *os_device_name(struct ibv_device *d) { return lib.ibv_get_device_name(d); }
int os_is_iwarp(struct ibv_device *d) { return d->transport_type == IBV_TRANSPORT_IWARP; }

struct ibv_context *os_open(struct ibv_device *d)
{
	struct ibv_context *ctx = lib.ibv_open_device(d);

	if (ctx && nonblocking(ctx->async_fd)) {
		int err = errno;
		lib.ibv_close_device(ctx);
		errno = err;
		return NULL;
	}
	return ctx;
}

int os_close(struct ibv_context *ctx) { return failed(lib.ibv_close_device(ctx)); }
int os_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr) { return code(lib.ibv_query_device(ctx, attr)); }

int os_query_port(struct ibv_context *ctx, int port, struct ibv_port_attr *attr)
{
	memset(attr, 0, sizeof *attr);
	return code(lib.ibv_query_port(ctx, port, (struct _compat_ibv_port_attr *)attr));
}

const char *os_device_node(struct ibv_context *ctx) { return ctx->device->dev_path; }
struct ibv_device *os_device_of(struct ibv_context *ctx) { return ctx->device; }

void os_let_go(struct ibv_context *ctx)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return;
	dup3(null, ctx->cmd_fd, O_CLOEXEC);
	dup3(null, ctx->async_fd, O_CLOEXEC);
	close(null);
}

int os_async_fd(struct ibv_context *ctx) { return ctx->async_fd; }

int os_get_async(struct ibv_context *ctx, struct os_async *out)
{
	struct ibv_async_event e;
	int rc = failed(lib.ibv_get_async_event(ctx, &e));

	if (rc)
		return rc;
	memset(out, 0, sizeof *out);
	out->event = e;
	out->type = e.event_type;
	out->text = lib.ibv_event_type_str(e.event_type);
	switch (e.event_type) {
	case IBV_EVENT_CQ_ERR:
		out->cq = e.element.cq;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->qpn = e.element.qp->qp_num;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
		out->port = e.element.port_num;
		break;
	default:
		break;
	}
	return 0;
}

void os_ack_async(struct os_async *a) { lib.ibv_ack_async_event(&a->event); }

struct ibv_pd *os_alloc_pd(struct ibv_context *ctx) { return lib.ibv_alloc_pd(ctx); }
int os_dealloc_pd(struct ibv_pd *pd) { return code(lib.ibv_dealloc_pd(pd)); }

struct ibv_mr *os_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t len, int access)
{
	return lib.ibv_reg_mr(pd, (void *)addr, len, access);
}

int os_dereg_mr(struct ibv_mr *mr) { return code(lib.ibv_dereg_mr(mr)); }
struct ibv_mw *os_alloc_mw(struct ibv_pd *pd) { return ibv_alloc_mw(pd, IBV_MW_TYPE_2); }
int os_dealloc_mw(struct ibv_mw *mw) { return code(ibv_dealloc_mw(mw)); }

struct ibv_comp_channel *os_create_channel(struct ibv_context *ctx)
{
	struct ibv_comp_channel *c = lib.ibv_create_comp_channel(ctx);

	if (c && nonblocking(c->fd)) {
		lib.ibv_destroy_comp_channel(c);
		return NULL;
	}
	return c;
}

int os_destroy_channel(struct ibv_comp_channel *c) { return code(lib.ibv_destroy_comp_channel(c)); }
int os_channel_fd(struct ibv_comp_channel *c) { return c->fd; }

// MADE is the result of a call that makes a queue. If it fails, errno has a reason, although siw's library sets none.
#define MADE(call) ({ \
	errno = 0; \
	__typeof__(call) made_ = (call); \
	if (!made_ && !errno) \
		errno = EIO; \
	made_; \
})

struct ibv_cq *os_create_cq(struct ibv_context *ctx, int depth, struct ibv_comp_channel *c)
{
	return MADE(lib.ibv_create_cq(ctx, depth, NULL, c, 0));
}

int os_destroy_cq(struct ibv_cq *cq) { return code(lib.ibv_destroy_cq(cq)); }

int os_poll(struct ibv_cq *cq, struct os_wc *out, int max)
{
	struct ibv_wc wc[OS_BATCH];
	int n = ibv_poll_cq(cq, max < OS_BATCH ? max : OS_BATCH, wc);

	for (int i = 0; i < n; i++) {
		out[i].id = wc[i].wr_id;
		out[i].status = wc[i].status;
		out[i].opcode = wc[i].opcode;
		out[i].bytes = wc[i].byte_len;
		out[i].flags = wc[i].wc_flags;
		// rxe tells the kernel's flags, of which this bit is the invalidation; elsewhere it is about
		// checksums of datagrams.
		if (wc[i].wc_flags & IBV_WC_IP_CSUM_OK && wc[i].status == IBV_WC_SUCCESS && wc[i].opcode == IBV_WC_RECV)
			out[i].flags |= IBV_WC_WITH_INV;
		out[i].rkey = wc[i].invalidated_rkey;
		out[i].qpn = wc[i].qp_num;
		out[i].vendor = wc[i].vendor_err;
	}
	return n;
}

int os_arm(struct ibv_cq *cq, struct os_wc *out, int max)
{
	int rc = code(ibv_req_notify_cq(cq, 0));

	return rc ? rc : os_poll(cq, out, max);
}

int os_consume(struct ibv_comp_channel *c)
{
	struct ibv_cq *cq;
	void *context;
	int n = 0;

	while (lib.ibv_get_cq_event(c, &cq, &context) == 0) {
		lib.ibv_ack_cq_events(cq, 1);
		n++;
	}
	return n;
}

const char *os_status(uint32_t status) { return lib.ibv_wc_status_str(status); }

int os_post_send(struct ibv_qp *qp, struct os_work *w, int n, struct ibv_sge *sge, int *done)
{
	struct ibv_send_wr wr[OS_BATCH], *bad = NULL;

	for (int i = 0; i < n; i++) {
		struct ibv_send_wr *r = &wr[i];

		r->wr_id = w[i].id;
		r->next = i + 1 < n ? r + 1 : NULL;
		r->sg_list = sge;
		r->num_sge = w[i].sges;
		r->opcode = w[i].opcode;
		r->send_flags = w[i].flags;
		r->imm_data = 0; // the same field as invalidate_rkey
		sge += w[i].sges;
		switch (r->opcode) {
		case IBV_WR_RDMA_WRITE:
		case IBV_WR_RDMA_READ:
			r->wr.rdma.remote_addr = w[i].remote;
			r->wr.rdma.rkey = w[i].rkey;
			break;
		case IBV_WR_SEND_WITH_INV:
		case IBV_WR_LOCAL_INV:
			r->invalidate_rkey = w[i].rkey;
			r->wr.rdma.rkey = w[i].rkey; // where siw's library looks for it
			r->wr.rdma.remote_addr = 0;
			break;
		case IBV_WR_BIND_MW:
			r->bind_mw.mw = (struct ibv_mw *)w[i].mw;
			r->bind_mw.rkey = w[i].rkey;
			r->bind_mw.bind_info.mr = (struct ibv_mr *)w[i].mr;
			r->bind_mw.bind_info.addr = w[i].remote;
			r->bind_mw.bind_info.length = w[i].length;
			r->bind_mw.bind_info.mw_access_flags = w[i].access;
			break;
		default:
			break;
		}
	}
	int rc = code(ibv_post_send(qp, wr, &bad));
	*done = bad ? (int)(bad - wr) : n;
	if (bad && rc == 0)
		rc = -ENOMEM; // siw's library forgets why it refused one when it rings for those before
	for (int i = 0; i < *done; i++)
		if (wr[i].opcode == IBV_WR_BIND_MW)
			((struct ibv_mw *)w[i].mw)->rkey = w[i].rkey; // rxe's library looks there for the old one
	return rc;
}

int os_post_recv(struct ibv_qp *qp, struct ibv_srq *srq, struct os_receive *r, int n, struct ibv_sge *sge, int *done)
{
	struct ibv_recv_wr wr[OS_BATCH], *bad = NULL;

	for (int i = 0; i < n; i++) {
		wr[i].wr_id = r[i].id;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].sg_list = sge;
		wr[i].num_sge = r[i].sges;
		sge += r[i].sges;
	}
	int rc = code(srq ? ibv_post_srq_recv(srq, wr, &bad) : ibv_post_recv(qp, wr, &bad));
	*done = rc == 0 ? n : bad ? (int)(bad - wr) : 0;
	return rc;
}

struct ibv_qp *os_create_qp(struct os_qp_config *c)
{
	struct ibv_qp_init_attr a = {
		.send_cq = c->send_cq, .recv_cq = c->recv_cq, .srq = c->srq, .qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = c->max_send, .max_recv_wr = c->srq ? 0 : c->max_recv,
			.max_send_sge = c->max_sge, .max_recv_sge = c->srq ? 0 : c->max_sge,
			.max_inline_data = c->max_inline,
		},
	};
	struct ibv_qp *qp = MADE(lib.ibv_create_qp(c->pd, &a));

	if (qp)
		c->max_inline = a.cap.max_inline_data;
	return qp;
}

int os_destroy_qp(struct ibv_qp *qp) { return code(lib.ibv_destroy_qp(qp)); }

enum { QP_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE };

int os_qp_init(struct ibv_qp *qp, int port)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = port, .qp_access_flags = QP_ACCESS };

	return code(lib.ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

int os_qp_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

	return code(lib.ibv_modify_qp(qp, &a, IBV_QP_STATE));
}

int os_qp_state(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	int rc = code(lib.ibv_query_qp(qp, &a, IBV_QP_STATE, &init));

	return rc ? rc : (int)a.qp_state;
}

uint32_t os_qp_num(struct ibv_qp *qp) { return qp->qp_num; }
uint32_t os_next_rkey(uint32_t rkey) { return ibv_inc_rkey(rkey); }

struct ibv_srq *os_create_srq(struct ibv_pd *pd, int depth, int sge)
{
	struct ibv_srq_init_attr a = { .attr = { .max_wr = depth, .max_sge = sge } };

	return MADE(lib.ibv_create_srq(pd, &a));
}

int os_destroy_srq(struct ibv_srq *srq) { return code(lib.ibv_destroy_srq(srq)); }

struct rdma_event_channel *os_cm_channel(void)
{
	struct rdma_event_channel *c = lib.rdma_create_event_channel();

	if (c && nonblocking(c->fd)) {
		lib.rdma_destroy_event_channel(c);
		return NULL;
	}
	return c;
}

void os_cm_destroy_channel(struct rdma_event_channel *c) { lib.rdma_destroy_event_channel(c); }
int os_cm_fd(struct rdma_event_channel *c) { return c->fd; }

int os_cm_event(struct rdma_event_channel *c, struct os_event *out)
{
	struct rdma_cm_event *e;
	int rc = failed(lib.rdma_get_cm_event(c, &e));

	if (rc)
		return rc;
	memset(out, 0, offsetof(struct os_event, private_data));
	out->type = e->event;
	out->status = e->status;
	out->id = e->id;
	out->handle = (uintptr_t)e->id->context;
	switch (e->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		out->listen_handle = (uintptr_t)e->listen_id->context;
		/* fallthrough */
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_REJECTED:
		out->initiator_depth = e->param.conn.initiator_depth;
		out->responder_resources = e->param.conn.responder_resources;
		if (e->param.conn.private_data) {
			out->private_len = e->param.conn.private_data_len;
			memcpy(out->private_data, e->param.conn.private_data, out->private_len);
		}
		break;
	default:
		break;
	}
	lib.rdma_ack_cm_event(e);
	return 0;
}

const char *os_cm_event_name(int type) { return lib.rdma_event_str(type); }

struct rdma_cm_id *os_cm_id(struct rdma_event_channel *c, uintptr_t handle)
{
	struct rdma_cm_id *id = NULL;

	return lib.rdma_create_id(c, &id, (void *)handle, RDMA_PS_TCP) ? NULL : id;
}

void os_cm_set_handle(struct rdma_cm_id *id, uintptr_t handle) { id->context = (void *)handle; }
int os_cm_destroy(struct rdma_cm_id *id) { return failed(lib.rdma_destroy_id(id)); }
const char *os_cm_device(struct rdma_cm_id *id) { return id->verbs ? lib.ibv_get_device_name(id->verbs->device) : NULL; }

struct ibv_context *os_cm_context(struct rdma_cm_id *id) { return id->verbs; }

int os_cm_listen(struct rdma_cm_id *id, void *addr, int backlog)
{
	int yes = 1, rc;

	lib.rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes);
	rc = failed(lib.rdma_bind_addr(id, addr));
	return rc ? rc : failed(lib.rdma_listen(id, backlog));
}

int os_cm_resolve_addr(struct rdma_cm_id *id, void *addr, int ms) { return failed(lib.rdma_resolve_addr(id, NULL, addr, ms)); }
int os_cm_resolve_route(struct rdma_cm_id *id, int ms) { return failed(lib.rdma_resolve_route(id, ms)); }

// RETRIES is the largest value. For RNR it means "for ever" (IBTA 9.7.5.2.8).
enum { RETRIES = 7 };

static struct rdma_conn_param params(const struct os_params *p)
{
	struct rdma_conn_param c = {
		.private_data = p->private_data, .private_data_len = p->private_len,
		.initiator_depth = p->initiator_depth, .responder_resources = p->responder_resources,
		.retry_count = RETRIES, .rnr_retry_count = RETRIES, .qp_num = p->qpn, .srq = p->srq,
	};

	return c;
}

int os_cm_connect(struct rdma_cm_id *id, struct os_params *p)
{
	struct rdma_conn_param c = params(p);

	return failed(lib.rdma_connect(id, &c));
}

int os_cm_accept(struct rdma_cm_id *id, struct os_params *p)
{
	struct rdma_conn_param c = params(p);

	return failed(lib.rdma_accept(id, &c));
}

int os_cm_establish(struct rdma_cm_id *id) { return failed(lib.rdma_establish(id)); }
int os_cm_reject(struct rdma_cm_id *id, const void *data, uint32_t len) { return failed(lib.rdma_reject(id, data, len)); }
int os_cm_disconnect(struct rdma_cm_id *id) { return failed(lib.rdma_disconnect(id)); }

int os_cm_addr(struct rdma_cm_id *id, int peer, void *out, int len)
{
	struct sockaddr *a = peer ? &id->route.addr.dst_addr : &id->route.addr.src_addr;
	int n = a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);

	memcpy(out, a, n < len ? n : len);
	return n;
}

static int move(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state, int initiator_depth, int responder_resources)
{
	struct ibv_qp_attr a = { .qp_state = state };
	int mask, rc = failed(lib.rdma_init_qp_attr(id, &a, &mask));

	if (rc || !mask)
		return rc;
	if (mask & IBV_QP_ACCESS_FLAGS)
		a.qp_access_flags = QP_ACCESS;
	if (mask & IBV_QP_MIN_RNR_TIMER)
		a.min_rnr_timer = 18; // 5.12 ms (IBTA table 46): receives are posted again sooner
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC && initiator_depth >= 0)
		a.max_rd_atomic = initiator_depth;
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC && responder_resources >= 0)
		a.max_dest_rd_atomic = responder_resources;
	return code(lib.ibv_modify_qp(qp, &a, mask));
}

int os_cm_ready(struct rdma_cm_id *id, struct ibv_qp *qp, int initiator_depth, int responder_resources)
{
	int rc = move(id, qp, IBV_QPS_INIT, -1, -1);

	if (rc || qp->context->device->transport_type == IBV_TRANSPORT_IWARP)
		return rc; // the kernel does the rest when it has a stream
	rc = move(id, qp, IBV_QPS_RTR, initiator_depth, responder_resources);
	return rc ? rc : move(id, qp, IBV_QPS_RTS, initiator_depth, responder_resources);
}
