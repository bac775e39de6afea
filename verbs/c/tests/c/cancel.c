/* Threads that are cancelled while they post and poll, and peers that come and go meanwhile.
 *
 * Usage: STORY VISITS, where STORY is `count` or `storm`. So often a visitor (a process on the port that ROCE_VISITOR names) sends
 * a datagram, and ends or is killed. `count` lets `points.c` watch the calls; `storm` cancels the threads that make them. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "check.h"
#include "ends.h"

#define QKEY 0x1234

__attribute__((weak)) void points_enter(void);
__attribute__((weak)) void points_leave(void);
__attribute__((weak)) int points_reached(void);

/* A call within which no cancellation point is to be reached. */
#define WITHIN(call)                      \
	({                                \
		if (points_enter)         \
			points_enter();   \
		__typeof__(call) r_ = (call); \
		if (points_leave)         \
			points_leave();   \
		r_;                       \
	})

struct address {
	union ibv_gid gid;
	unsigned int qp_num;
};

static struct end visited, own, lost;
static volatile int datagrams, done;

static void ud_to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

/* Sends datagrams until it is killed, or, if it `ends`, until it hears that one arrived. */
static void visit(int told, int ends)
{
	struct address to;
	setenv("ROCE_PORT", getenv("ROCE_VISITOR"), 1);
	/* Ports of other names do not tell each other their addresses; those of udp are the host's. */
	if (strncmp(getenv("ROCE_VISITOR"), "udp", 3))
		setenv("ROCE_ADDR", "10.77.0.2/24", 1);
	unsetenv("ROCE_PCAP");
	IS(read(told, &to, sizeof to), sizeof to);
	open_end(&own, IBV_QPT_UD);
	ud_to_rts(own.qp);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1,
				    .grh = { .dgid = to.gid, .sgid_index = 1, .hop_limit = 4 } };
	struct ibv_ah *ah = MUST(ibv_create_ah(own.pd, &attr));
	struct ibv_sge sge = { .addr = (uintptr_t)own.memory, .length = 8, .lkey = own.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.ud = { .ah = ah, .remote_qpn = to.qp_num, .remote_qkey = QKEY } }, *bad;
	struct pollfd arrived = { .fd = told, .events = POLLIN };
	do {
		OK(ibv_post_send(own.qp, &wr, &bad));
		IS(completion(own.cq).status, IBV_WC_SUCCESS);
	} while (poll(&arrived, 1, 5) == 0);
	if (!ends)
		pause();
	exit(failures != 0);
}

/* A process that uses no device, and forks the visitors: the program itself, which does, cannot. */
static void host(int told, int visits)
{
	struct address to;
	IS(read(told, &to, sizeof to), sizeof to);
	for (int i = 0; i < visits; i++) {
		int pair[2], status;
		char byte;
		OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
		pid_t child = fork();
		if (child == 0) {
			close(pair[0]);
			visit(pair[1], i % 2);
		}
		close(pair[1]);
		IS(write(pair[0], &to, sizeof to), sizeof to);
		IS(read(told, &byte, 1), 1); /* a datagram arrived */
		IS(write(pair[0], &byte, 1), 1);
		if (i % 2 == 0)
			kill(child, SIGKILL);
		IS(waitpid(child, &status, 0), child);
		IS(i % 2 == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0), 1);
		close(pair[0]);
		IS(write(told, &byte, 1), 1); /* gone */
	}
	exit(failures != 0);
}

/* All that threads do: datagrams come, messages to itself with events, sends to nobody, queue pairs that end. */
static void turn(void)
{
	struct ibv_wc wc[8];
	int n = WITHIN(ibv_poll_cq(visited.cq, 8, wc));
	for (int i = 0; i < n; i++)
		datagrams++;
	for (int i = 0; i < n; i++)
		WITHIN(receive_at(&visited));
	WITHIN(ibv_req_notify_cq(own.cq, 0));
	if (WITHIN(receive_at(&own)) == 0)
		WITHIN(send_from(&own));
	WITHIN(ibv_poll_cq(own.cq, 8, wc));
	WITHIN(send_from(&lost));
	WITHIN(ibv_poll_cq(lost.cq, 8, wc));
}

static void *turns(void *storm)
{
	while (!done) {
		turn();
		if (storm)
			pthread_testcancel();
	}
	return NULL;
}

static void *cancels(void *unused)
{
	(void)unused;
	while (!done) {
		pthread_t threads[2];
		void *result;
		for (int i = 0; i < 2; i++)
			OK(pthread_create(&threads[i], NULL, turns, (void *)1));
		usleep(2000);
		for (int i = 0; i < 2; i++)
			OK(pthread_cancel(threads[i]));
		for (int i = 0; i < 2; i++) {
			OK(pthread_join(threads[i], &result));
			IS(result == PTHREAD_CANCELED || done, 1);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const char *story = argc > 1 ? argv[1] : "";
	int visits = argc > 2 ? atoi(argv[2]) : 0, pair[2], status;
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pid_t child = fork();
	if (child == 0) {
		close(pair[0]);
		host(pair[1], visits);
	}
	close(pair[1]);

	struct ibv_context *context = open_first();
	visited.context = own.context = lost.context = context;
	open_end(&visited, IBV_QPT_UD);
	open_end(&own, IBV_QPT_RC);
	open_end(&lost, IBV_QPT_RC);
	ud_to_rts(visited.qp);
	for (int i = 0; i < 16; i++)
		OK(WITHIN(receive_at(&visited)));
	struct address address = { own_gid(context), visited.qp->qp_num };
	connect_rc(own.qp, own.qp->qp_num, address.gid);
	union ibv_gid nobody = address.gid;
	nobody.raw[15] ^= 0x20;
	connect_rc(lost.qp, lost.qp->qp_num, nobody);

	pthread_t thread;
	OK(pthread_create(&thread, NULL, strcmp(story, "storm") ? turns : cancels, NULL));
	IS(write(pair[0], &address, sizeof address), sizeof address);
	for (int i = 0; i < visits; i++) {
		char byte = 0;
		int before = datagrams;
		while (datagrams == before)
			usleep(1000);
		IS(write(pair[0], &byte, 1), 1);
		IS(read(pair[0], &byte, 1), 1);
		usleep(5000); /* what it sent last has arrived, or soon will: either is right */
	}
	usleep(20000);
	done = 1;
	OK(pthread_join(thread, NULL));
	IS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, 1);
	if (!strcmp(story, "count"))
		IS(points_reached ? points_reached() : -1, 0);
	return failures != 0;
}
