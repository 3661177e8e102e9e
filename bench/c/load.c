// Loads an iSCSI logical unit through libiscsi, the foreign client.
//
//   load URL read|write random|sequential SIZE DEPTH SESSIONS SECONDS
//   load URL fill                 writes the whole unit once
//
// One thread serves all sessions. Every session keeps DEPTH commands of SIZE
// bytes outstanding. The figures are those of the commands that ended within
// SECONDS. Build: cc -O2 -o load load.c -liscsi
#define _GNU_SOURCE
#include "measure.h"
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <poll.h>
#include <string.h>

struct session;
struct slot {
	struct session *session;
	uint64_t begin;
	unsigned char *data;
	struct scsi_iovec iov;
};
struct session {
	struct iscsi_context *iscsi;
	int lun;
	uint64_t next, seed; // next: block number of the sequential case, in units of size
	struct slot *slots;
};

static struct histogram latencies;
static uint64_t units, deadline, filled;
static uint32_t size, block_size;
static int writes, sequential, filling;
static unsigned outstanding;

static void submit(struct slot *slot);

static void completed(struct iscsi_context *iscsi, int status, void *data, void *private_data)
{
	struct scsi_task *task = data;
	struct slot *slot = private_data;
	uint64_t end = now_ns();

	if (status != SCSI_STATUS_GOOD)
		fail(writes ? "write" : "read", iscsi_get_error(iscsi));
	scsi_free_scsi_task(task);
	outstanding--;
	if (filling ? filled < units : end < deadline) {
		record(&latencies, end - slot->begin);
		submit(slot);
	}
}

static void submit(struct slot *slot)
{
	struct session *s = slot->session;
	uint64_t unit = filling ? filled++ : sequential ? s->next++ % units : next_random(&s->seed) % units;
	uint64_t lba = unit * (size / block_size);
	struct scsi_task *task;

	slot->begin = now_ns();
	if (writes)
		task = iscsi_write16_iov_task(s->iscsi, s->lun, lba, NULL, size, (int)block_size, 0, 0, 0, 0, 0, completed, slot,
					      &slot->iov, 1);
	else
		task = iscsi_read16_iov_task(s->iscsi, s->lun, lba, size, (int)block_size, 0, 0, 0, 0, 0, completed, slot,
					     &slot->iov, 1);
	if (!task)
		fail("submit", iscsi_get_error(s->iscsi));
	outstanding++;
}

static void login(struct session *s, const char *text, int number)
{
	char name[64];
	snprintf(name, sizeof name, "iqn.2026-11.example.clients:bench%d", number);
	s->iscsi = iscsi_create_context(name);
	struct iscsi_url *url = s->iscsi ? iscsi_parse_full_url(s->iscsi, text) : NULL;
	if (!url)
		fail("URL", s->iscsi ? iscsi_get_error(s->iscsi) : "no memory");
	iscsi_set_targetname(s->iscsi, url->target);
	iscsi_set_session_type(s->iscsi, ISCSI_SESSION_NORMAL);
	iscsi_set_header_digest(s->iscsi, ISCSI_HEADER_DIGEST_NONE);
	s->lun = url->lun;
	if (iscsi_full_connect_sync(s->iscsi, url->portal, url->lun))
		fail("login", iscsi_get_error(s->iscsi));
	iscsi_destroy_url(url);
}

static void capacity(struct session *s)
{
	struct scsi_task *task = iscsi_readcapacity16_sync(s->iscsi, s->lun);
	struct scsi_readcapacity16 *rc = task && task->status == SCSI_STATUS_GOOD ? scsi_datain_unmarshall(task) : NULL;
	if (!rc)
		fail("READ CAPACITY(16)", iscsi_get_error(s->iscsi));
	block_size = rc->block_length;
	units = (rc->returned_lba + 1) * block_size / size;
	scsi_free_scsi_task(task);
}

static void loop(struct session *sessions, int n)
{
	struct pollfd *fds = calloc((size_t)n, sizeof *fds);
	while (outstanding > 0) {
		for (int i = 0; i < n; i++) {
			fds[i].fd = iscsi_get_fd(sessions[i].iscsi);
			fds[i].events = (short)iscsi_which_events(sessions[i].iscsi);
		}
		if (poll(fds, (nfds_t)n, 30000) <= 0)
			fail("poll", "no answer for 30 s");
		for (int i = 0; i < n; i++)
			if (fds[i].revents && iscsi_service(sessions[i].iscsi, fds[i].revents) < 0)
				fail("service", iscsi_get_error(sessions[i].iscsi));
	}
	free(fds);
}

int main(int argc, char **argv)
{
	char *fill[] = {argv[0], argv[1], "write", "sequential", "262144", "8", "1", "0"};
	filling = argc == 3 && !strcmp(argv[2], "fill");
	if (filling)
		argv = fill;
	else if (argc != 8)
		fail(argv[0], "URL read|write random|sequential SIZE DEPTH SESSIONS SECONDS, or URL fill");
	writes = !strcmp(argv[2], "write");
	sequential = !strcmp(argv[3], "sequential");
	size = (uint32_t)atoi(argv[4]);
	int depth = atoi(argv[5]), n = atoi(argv[6]);

	struct session *sessions = calloc((size_t)n, sizeof *sessions);
	for (int i = 0; i < n; i++) {
		login(&sessions[i], argv[1], i);
		capacity(&sessions[i]);
		sessions[i].seed = 88172645463325252u + (uint64_t)i;
		sessions[i].next = units / (uint64_t)n * (uint64_t)i;
		sessions[i].slots = calloc((size_t)depth, sizeof(struct slot));
	}
	double cpu = cpu_seconds();
	uint64_t begin = now_ns();
	deadline = begin + (uint64_t)(atof(argv[7]) * 1e9);
	for (int i = 0; i < n; i++)
		for (int d = 0; d < depth; d++) {
			struct slot *slot = &sessions[i].slots[d];
			slot->session = &sessions[i];
			slot->data = aligned_alloc(4096, size);
			memset(slot->data, i + d + 1, size);
			slot->iov = (struct scsi_iovec){slot->data, size};
			submit(slot);
		}
	loop(sessions, n);
	report(&latencies, begin, filling ? now_ns() : deadline, cpu_seconds() - cpu);
	for (int i = 0; i < n; i++)
		iscsi_logout_sync(sessions[i].iscsi);
	return 0;
}
