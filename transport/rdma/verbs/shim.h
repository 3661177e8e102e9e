// Small functions over libibverbs and librdmacm for package verbs. One function here replaces many calls
// from Go to C, or an inline function of the libraries. Functions that can fail return 0 or a negative
// errno. Functions that make an object return it, or NULL with errno set.
#ifndef ONESHOT_VERBS_SHIM_H
#define ONESHOT_VERBS_SHIM_H

#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

// os_load loads the libraries when the process needs them, so that a program with this package also
// starts on machines without them. It returns NULL, or the name of what is missing. Call it once. If find
// is not NULL, it finds the functions instead, as in tests.
typedef void *os_find(const char *name);
const char *os_load(os_find *find);

// Devices.
struct ibv_device **os_devices(int *n);
void os_free_devices(struct ibv_device **list);
const char *os_device_name(struct ibv_device *d);
int os_is_iwarp(struct ibv_device *d);
struct ibv_context *os_open(struct ibv_device *d);
int os_close(struct ibv_context *ctx);
int os_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr);
int os_query_port(struct ibv_context *ctx, int port, struct ibv_port_attr *attr);

// os_device_node returns the path in sysfs that exists as long as programs can open the device.
const char *os_device_node(struct ibv_context *ctx);
struct ibv_device *os_device_of(struct ibv_context *ctx);
// os_let_go closes the device that a context of librdmacm has open. The descriptors stay open for librdmacm,
// which closes them later or never, but refer to /dev/null.
void os_let_go(struct ibv_context *ctx);

struct os_async {
	struct ibv_async_event event; // to be acknowledged
	uint32_t type;
	uint32_t port; // of port events
	uint32_t qpn;  // of events of a queue pair
	void *cq;      // of events of a completion queue
	const char *text;
};
int os_async_fd(struct ibv_context *ctx);
int os_get_async(struct ibv_context *ctx, struct os_async *out);
// os_ack_async has to be called for each event of os_get_async. Before that, the queue pair or completion queue of
// the event cannot be destroyed, and its number is not given to another one.
void os_ack_async(struct os_async *a);

// Memory.
struct ibv_pd *os_alloc_pd(struct ibv_context *ctx);
int os_dealloc_pd(struct ibv_pd *pd);
struct ibv_mr *os_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t len, int access);
int os_dereg_mr(struct ibv_mr *mr);
struct ibv_mw *os_alloc_mw(struct ibv_pd *pd);
int os_dealloc_mw(struct ibv_mw *mw);

// Completions.
struct os_wc {
	uint64_t id;
	uint32_t status;
	uint32_t opcode; // valid if status is 0
	uint32_t bytes;
	uint32_t flags;
	uint32_t rkey; // the one that was invalidated
	uint32_t qpn;
	uint32_t vendor;
	uint32_t pad;
};
struct ibv_comp_channel *os_create_channel(struct ibv_context *ctx);
int os_destroy_channel(struct ibv_comp_channel *c);
int os_channel_fd(struct ibv_comp_channel *c);
struct ibv_cq *os_create_cq(struct ibv_context *ctx, int depth, struct ibv_comp_channel *c);
int os_destroy_cq(struct ibv_cq *cq);
int os_poll(struct ibv_cq *cq, struct os_wc *out, int max);
// os_arm arms cq and then polls it, so that no completion is missed.
int os_arm(struct ibv_cq *cq, struct os_wc *out, int max);
// os_consume takes all events from the channel and returns their number.
int os_consume(struct ibv_comp_channel *c);
const char *os_status(uint32_t status);

// Work.
struct os_work {
	uint64_t id;
	uint64_t remote; // RDMA: address; bind: address
	uint64_t length; // bind
	uintptr_t mw;    // bind: a struct ibv_mw *, as mr is one; cgo would check pointers each time
	uintptr_t mr;
	uint32_t rkey;   // RDMA; to invalidate; bind: the new one
	uint32_t opcode;
	uint32_t flags;
	uint32_t sges;
	uint32_t access; // bind
	uint32_t pad;
};
struct os_receive {
	uint64_t id;
	uint64_t sges;
};
enum { OS_BATCH = 64 };

// os_post_send posts n <= OS_BATCH requests, whose elements follow one another in sge, with one call of
// the provider. It sets *done to the number of requests that were taken, which may be all even if the call fails.
int os_post_send(struct ibv_qp *qp, struct os_work *w, int n, struct ibv_sge *sge, int *done);
// os_post_recv posts to srq, or to qp if that is NULL.
int os_post_recv(struct ibv_qp *qp, struct ibv_srq *srq, struct os_receive *r, int n, struct ibv_sge *sge, int *done);

struct os_qp_config {
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_srq *srq;
	uint32_t max_send, max_recv, max_sge, max_inline; // max_inline is set to what it is
};
struct ibv_qp *os_create_qp(struct os_qp_config *c);
int os_destroy_qp(struct ibv_qp *qp);
int os_qp_init(struct ibv_qp *qp, int port);
int os_qp_error(struct ibv_qp *qp);
int os_qp_state(struct ibv_qp *qp);
uint32_t os_qp_num(struct ibv_qp *qp);
uint32_t os_next_rkey(uint32_t rkey);
struct ibv_srq *os_create_srq(struct ibv_pd *pd, int depth, int sge);
int os_destroy_srq(struct ibv_srq *srq);

// Connections.
struct os_event {
	int type;
	int status;
	struct rdma_cm_id *id;
	uintptr_t handle;        // of id
	uintptr_t listen_handle; // of a request
	uint32_t initiator_depth, responder_resources;
	uint32_t private_len;
	uint32_t srq;
	uint8_t private_data[256];
};
struct os_params {
	const void *private_data;
	uint32_t private_len;
	uint32_t initiator_depth, responder_resources;
	uint32_t qpn, srq;
};
struct rdma_event_channel *os_cm_channel(void);
void os_cm_destroy_channel(struct rdma_event_channel *c);
int os_cm_fd(struct rdma_event_channel *c);
int os_cm_event(struct rdma_event_channel *c, struct os_event *out);
const char *os_cm_event_name(int type);
struct rdma_cm_id *os_cm_id(struct rdma_event_channel *c, uintptr_t handle);
void os_cm_set_handle(struct rdma_cm_id *id, uintptr_t handle);
int os_cm_destroy(struct rdma_cm_id *id);
const char *os_cm_device(struct rdma_cm_id *id); // NULL: none
struct ibv_context *os_cm_context(struct rdma_cm_id *id); // NULL: none
int os_cm_listen(struct rdma_cm_id *id, void *addr, int backlog);
int os_cm_resolve_addr(struct rdma_cm_id *id, void *addr, int ms);
int os_cm_resolve_route(struct rdma_cm_id *id, int ms);
int os_cm_connect(struct rdma_cm_id *id, struct os_params *p);
int os_cm_accept(struct rdma_cm_id *id, struct os_params *p);
int os_cm_establish(struct rdma_cm_id *id);
int os_cm_reject(struct rdma_cm_id *id, const void *data, uint32_t len);
int os_cm_disconnect(struct rdma_cm_id *id);
// os_cm_addr copies the local or the peer's address, a sockaddr_in or sockaddr_in6, and returns
// its length.
int os_cm_addr(struct rdma_cm_id *id, int peer, void *out, int len);
// os_cm_ready moves qp from INIT to RTS with the attributes of the connection manager. Depths below 0
// leave its values for Reads.
int os_cm_ready(struct rdma_cm_id *id, struct ibv_qp *qp, int initiator_depth, int responder_resources);

#endif
