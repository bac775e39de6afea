/* What the library says on standard error of what the stack warns about: the test that runs this reads it. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/resource.h>

#include "check.h"
#include "filter.h"

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static void open_all(void)
{
	context = open_first();
	cq = MUST(ibv_create_cq(context, 16, NULL, NULL, 0));
	qp = make_qp(MUST(ibv_alloc_pd(context)), cq, IBV_QPT_RC);
}

/* Sends to the address 10.77.0.1 until the request ends, which it does with an error: nobody there has this queue pair. */
static void send_to_the_first(void)
{
	union ibv_gid gid = own_gid(context);
	gid.raw[15] = 1;
	connect_rc(qp, 0x123456, gid);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	OK(ibv_post_send(qp, &wr, &bad));
	IS(completion(cq).status, IBV_WC_RETRY_EXC_ERR);
}

/* The device, until standard input ends. */
static void hold(void)
{
	open_all();
	struct pollfd in = { .fd = 0, .events = POLLIN };
	struct ibv_wc wc;
	while (poll(&in, 1, 10) == 0)
		ibv_poll_cq(cq, 1, &wc);
}

/* This process gets no further descriptor. */
static void use_up_descriptors(void)
{
	struct rlimit none = { 3, 3 };
	OK(setrlimit(RLIMIT_NOFILE, &none));
}

/* Standard error takes nothing, and a write to it would stand still, or end the process: what is said is lost, and no more. */
static void deaf(int full)
{
	int ends[2];
	OK(pipe(ends));
	if (full) {
		char page[4096] = { 0 };
		OK(fcntl(ends[1], F_SETFL, O_NONBLOCK));
		while (write(ends[1], page, sizeof page) > 0)
			;
		OK(fcntl(ends[1], F_SETFL, 0));
	} else {
		close(ends[0]);
	}
	IS(dup2(ends[1], 2), 2);
	open_all();
	send_to_the_first();
	ibv_close_device(context);
}

/* Names an address of the link that was the default port once, as the peer's and as its own. */
static void name_private_addresses(void)
{
	struct rdma_event_channel *channel = MUST(rdma_create_event_channel());
	struct rdma_cm_id *id;
	OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = inet_addr("10.77.0.1"), .sin_port = htons(7) };
	IS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 100), -1);
	IS(errno, ENETUNREACH);
	IS(rdma_bind_addr(id, (struct sockaddr *)&address), -1);
	IS(errno, EADDRNOTAVAIL);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	OK(rdma_bind_addr(id, (struct sockaddr *)&address));
	OK(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	const char *story = argc > 1 ? argv[1] : "";
	if (!strcmp(story, "hold")) {
		hold();
	} else if (!strcmp(story, "send")) {
		open_all();
		send_to_the_first();
	} else if (!strcmp(story, "no-memfd")) {
		refuse_call(SYS_memfd_create, EPERM);
		open_all();
		send_to_the_first();
	} else if (!strcmp(story, "no-descriptors")) {
		open_all();
		use_up_descriptors();
		send_to_the_first();
	} else if (!strcmp(story, "private-addresses")) {
		name_private_addresses();
	} else if (!strcmp(story, "full-pipe")) {
		deaf(1);
	} else if (!strcmp(story, "closed-pipe")) {
		deaf(0);
	} else {
		return 3;
	}
	return failures != 0;
}
