/* Processes of one host, each connected with each other one: SEND, WRITE, READ and FETCH&ADD on all connections at once, every byte
 * and every sum checked. `many PROCESSES CONNECTIONS SECONDS [BYTES]`: so many connections between two processes, so long, messages of so
 * many bytes. With one process it is connected with itself. It says how much was done, and ends with 1 if anything was wrong. */
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"

#define PROCESSES_MAX 256
#define RECEIVES 4
/* Seconds without a completion after which a process says what it waits for, and ends. */
#define PATIENCE 30

/* What all processes see. A number of a connection: of whose it is, the peer, and which of the connections between them. */
static struct board {
	unsigned int arrived[4], failed;
	union ibv_gid gid[PROCESSES_MAX];
	uint64_t base[PROCESSES_MAX];
	uint32_t rkey[PROCESSES_MAX];
	struct entry {
		uint32_t qpn;
		uint64_t rounds;
	} entry[];
} *board;

static unsigned int processes, between, connections, me;
static size_t bytes = 4096, slot;

static struct entry *entry(unsigned int of, unsigned int connection) { return &board->entry[of * connections + connection]; }

/* Connections of a process: `between` with process 0, then with 1, and so on; with itself only if it is alone. */
static unsigned int peer_of(unsigned int connection)
{
	unsigned int at = connection / between;
	return processes > 1 && at >= me ? at + 1 : at;
}

/* The connection at its peer's. Alone, the last one is the peer of the first one. */
static unsigned int mirror(unsigned int connection)
{
	if (processes == 1)
		return connections - 1 - connection;
	unsigned int at = me > peer_of(connection) ? me - 1 : me;
	return at * between + connection % between;
}

/* Waits for all processes. */
static void meet(int where)
{
	__atomic_add_fetch(&board->arrived[where], 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&board->arrived[where], __ATOMIC_SEQ_CST) < processes)
		if (__atomic_load_n(&board->failed, __ATOMIC_SEQ_CST))
			exit(3);
		else
			usleep(1000);
}

/* A slot is what a connection has of the memory: what is sent, what is written and read back, where the peer writes, a place for each
 * receive, the word to which the peer adds, and the word that an addition brings. */
enum part { SENT, WRITTEN, READ, TARGET, RECEIVED, SUM = RECEIVED + RECEIVES, BROUGHT, PARTS };

static size_t place(unsigned int connection, enum part part) { return connection * slot + part * bytes; }

static uint64_t word(unsigned int from, unsigned int connection, uint64_t round, size_t at, int kind)
{
	uint64_t x = ((uint64_t)from << 48) ^ ((uint64_t)connection << 32) ^ (round << 8) ^ (uint64_t)kind ^ (at * 0x9e3779b97f4a7c15u);
	return x ^ x >> 29;
}

static void fill(char *to, unsigned int connection, uint64_t round, int kind)
{
	for (size_t at = 0; at < bytes / 8; at++)
		((uint64_t *)to)[at] = word(me, connection, round, at, kind);
}

static void check(const char *what, const char *got, unsigned int from, unsigned int connection, uint64_t round, int kind)
{
	for (size_t at = 0; at < bytes / 8; at++)
		if (((const uint64_t *)got)[at] != word(from, connection, round, at, kind)) {
			fprintf(stderr, "process %u: %s of process %u, connection %u, round %" PRIu64 ": wrong at word %zu\n", me, what,
				from, connection, round, at);
			failures++;
			return;
		}
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void process(double duration)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = MUST(ibv_alloc_pd(context));
	struct ibv_cq *cq = MUST(ibv_create_cq(context, (int)connections * (4 + RECEIVES), NULL, NULL, 0));
	char *memory = MUST(mmap(NULL, connections * slot, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	struct ibv_mr *mr = MUST(ibv_reg_mr(pd, memory, connections * slot,
					    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						    IBV_ACCESS_REMOTE_ATOMIC));
	struct ibv_qp **qps = MUST(calloc(connections, sizeof *qps));
	struct {
		uint64_t sent, received;
		int is_busy;
	} *state = MUST(calloc(connections, sizeof *state));
	OK(ibv_query_gid(context, 1, 0, &board->gid[me]));
	board->base[me] = (uintptr_t)memory;
	board->rkey[me] = mr->rkey;
	/* By queue pair number, to find the connection of a completion. */
	for (unsigned int at = 0; at < connections; at++) {
		qps[at] = make_qp(pd, cq, IBV_QPT_RC);
		entry(me, at)->qpn = qps[at]->qp_num;
		to_init(qps[at]);
		for (unsigned int i = 0; i < RECEIVES; i++) {
			struct ibv_sge to = { .addr = (uintptr_t)memory + place(at, RECEIVED + i), .length = bytes, .lkey = mr->lkey };
			struct ibv_recv_wr wr = { .wr_id = (uint64_t)at << 8 | 128 | i, .sg_list = &to, .num_sge = 1 }, *bad;
			OK(ibv_post_recv(qps[at], &wr, &bad));
		}
	}
	meet(0);
	for (unsigned int at = 0; at < connections; at++) {
		unsigned int peer = peer_of(at);
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = entry(peer, mirror(at))->qpn,
					    .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
					    .ah_attr = { .is_global = 1, .port_num = 1,
							 .grh = { .dgid = board->gid[peer], .sgid_index = 0, .hop_limit = 64 } } };
		OK(ibv_modify_qp(qps[at], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
							  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
		struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };
		OK(ibv_modify_qp(qps[at], &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
							 IBV_QP_MAX_QP_RD_ATOMIC));
	}
	meet(1);
	double begin = seconds(), last = begin;
	unsigned int busy = 0;
	int is_over = 0, is_met = 0;
	for (;;) {
		is_over = is_over || seconds() - begin >= duration;
		for (unsigned int at = 0; at < connections && !is_over; at++) {
			if (state[at].is_busy)
				continue;
			unsigned int peer = peer_of(at), theirs = mirror(at);
			uint64_t there = board->base[peer] + place(theirs, 0), round = state[at].sent++;
			fill(memory + place(at, SENT), at, round, 1);
			fill(memory + place(at, WRITTEN), at, round, 2);
			struct ibv_sge sge[4] = {
				{ .addr = (uintptr_t)memory + place(at, SENT), .length = bytes, .lkey = mr->lkey },
				{ .addr = (uintptr_t)memory + place(at, WRITTEN), .length = bytes, .lkey = mr->lkey },
				{ .addr = (uintptr_t)memory + place(at, READ), .length = bytes, .lkey = mr->lkey },
				{ .addr = (uintptr_t)memory + place(at, BROUGHT), .length = 8, .lkey = mr->lkey },
			};
			struct ibv_send_wr wr[4] = {
				{ .wr_id = (uint64_t)at << 8, .next = &wr[1], .sg_list = &sge[0], .num_sge = 1, .opcode = IBV_WR_SEND },
				{ .wr_id = (uint64_t)at << 8 | 1, .next = &wr[2], .sg_list = &sge[1], .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { .remote_addr = there + place(0, TARGET), .rkey = board->rkey[peer] } },
				{ .wr_id = (uint64_t)at << 8 | 2, .next = &wr[3], .sg_list = &sge[2], .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
				  .wr.rdma = { .remote_addr = there + place(0, TARGET), .rkey = board->rkey[peer] } },
				{ .wr_id = (uint64_t)at << 8 | 3, .sg_list = &sge[3], .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.atomic = { .remote_addr = there + place(0, SUM), .compare_add = round + 1, .rkey = board->rkey[peer] } },
			}, *bad;
			OK(ibv_post_send(qps[at], wr, &bad));
			state[at].is_busy = 1;
			busy++;
		}
		/* All of this process is done: it receives until all processes are done, and then what is left. */
		if (is_over && busy == 0 && !is_met) {
			for (unsigned int at = 0; at < connections; at++)
				entry(me, at)->rounds = state[at].sent;
			__atomic_add_fetch(&board->arrived[2], 1, __ATOMIC_SEQ_CST);
			is_met = 1;
		}
		if (is_met && __atomic_load_n(&board->arrived[2], __ATOMIC_SEQ_CST) == processes) {
			unsigned int complete = 0;
			for (unsigned int at = 0; at < connections; at++)
				complete += state[at].received == entry(peer_of(at), mirror(at))->rounds;
			if (complete == connections)
				break;
		}
		if (failures || __atomic_load_n(&board->failed, __ATOMIC_SEQ_CST))
			exit(1);
		struct ibv_wc wc[64];
		int n = ibv_poll_cq(cq, 64, wc);
		if (n > 0)
			last = seconds();
		else
			sched_yield();
		if (n == 0 && seconds() - last > PATIENCE) {
			for (unsigned int at = 0; at < connections; at++)
				fprintf(stderr, "process %u, connection %u with process %u: nothing for %d s: %s, %" PRIu64 " sent, %" PRIu64 " received\n",
					me, at, peer_of(at), PATIENCE, state[at].is_busy ? "busy" : "idle", state[at].sent, state[at].received);
			exit(1);
		}
		for (int i = 0; i < n; i++) {
			unsigned int at = (unsigned int)(wc[i].wr_id >> 8), what = wc[i].wr_id & 255;
			if (wc[i].status != IBV_WC_SUCCESS) {
				fprintf(stderr, "process %u, connection %u with process %u, request %u: %s\n", me, at, peer_of(at), what,
					ibv_wc_status_str(wc[i].status));
				failures++;
			} else if (what & 128) {
				IS(wc[i].byte_len, bytes);
				unsigned int which = what & 127;
				check("a message", memory + place(at, RECEIVED + which), peer_of(at), mirror(at), state[at].received++, 1);
				struct ibv_sge to = { .addr = (uintptr_t)memory + place(at, RECEIVED + which), .length = bytes, .lkey = mr->lkey };
				struct ibv_recv_wr wr = { .wr_id = wc[i].wr_id, .sg_list = &to, .num_sge = 1 }, *bad;
				OK(ibv_post_recv(qps[at], &wr, &bad));
			} else {
				uint64_t round = state[at].sent - 1, brought = *(uint64_t *)(memory + place(at, BROUGHT));
				check("what was read back", memory + place(at, READ), me, at, round, 2);
				IS(brought, round * (round + 1) / 2);
				state[at].is_busy = 0;
				busy--;
			}
		}
	}
	meet(3);
	for (unsigned int at = 0; at < connections; at++) {
		uint64_t rounds = entry(peer_of(at), mirror(at))->rounds;
		IS(*(uint64_t *)(memory + place(at, SUM)), rounds * (rounds + 1) / 2);
		if (rounds > 0)
			check("what was written", memory + place(at, TARGET), peer_of(at), mirror(at), rounds - 1, 2);
	}
	for (unsigned int at = 0; at < connections; at++)
		OK(ibv_destroy_qp(qps[at]));
	OK(ibv_destroy_cq(cq));
	OK(ibv_dereg_mr(mr));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_close_device(context));
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return fprintf(stderr, "usage: many PROCESSES CONNECTIONS SECONDS [BYTES]\n"), 2;
	processes = (unsigned int)atoi(argv[1]), between = (unsigned int)atoi(argv[2]);
	bytes = argc > 4 ? strtoul(argv[4], NULL, 0) & ~(size_t)7 : bytes;
	connections = processes > 1 ? (processes - 1) * between : between;
	if (processes < 1 || processes > PROCESSES_MAX || between < 1 || bytes < 8)
		return fprintf(stderr, "1 to %d processes, one connection or more, 8 bytes or more\n", PROCESSES_MAX), 2;
	slot = PARTS * bytes;
	size_t size = sizeof *board + sizeof(struct entry) * processes * connections;
	board = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double begin = seconds();
	for (me = 0; me < processes; me++)
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			process(atof(argv[3]));
			exit(failures != 0);
		}
	for (unsigned int i = 0; i < processes; i++) {
		int status;
		pid_t pid = wait(&status);
		if (status) {
			fprintf(stderr, "process %d ended with %x\n", (int)pid, (unsigned int)status);
			__atomic_add_fetch(&board->failed, 1, __ATOMIC_SEQ_CST);
		}
	}
	uint64_t rounds = 0, least = UINT64_MAX;
	for (unsigned int at = 0; at < processes * connections; at++) {
		rounds += board->entry[at].rounds;
		least = board->entry[at].rounds < least ? board->entry[at].rounds : least;
	}
	printf("%u processes, %u queue pairs each, %zu bytes: %" PRIu64 " rounds, %" PRIu64 " at least on each, %.1f s, %u failed\n", processes,
	       connections, bytes, rounds, least, seconds() - begin, board->failed);
	return board->failed != 0;
}
