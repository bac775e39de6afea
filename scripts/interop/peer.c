/*
 * The far end of the interoperability runs: a program over stock libibverbs, for a Linux guest with soft-RoCE.
 *
 *     peer DEVICE        serves one connection after the other on TCP port 18515
 *
 * It executes the requests of the other side, one per line: "verb key=value ...", numbers in decimal or 0x hexadecimal.
 * Every line is answered by one line, "ok key=value ..." or "error TEXT". Message i of a run carries
 * pattern(seed + i), so that both sides can check what arrived.
 *
 *     hello                                                   kernel, device limits, addresses
 *     qp type=rc|uc|ud mtu=1..5 gid=INDEX psn= timeout= retry= rnr= rnrt= depth= access= srq=0|1 atomic_write=0|1
 *        raw=0|1                                          atomics by the calls that check nothing
 *     connect qp= qpn= psn= dgid=32 hex digits tc= rd=        INIT to RTS
 *     fill off= len= seed=                                    write a pattern into the region
 *     check off= len= seed= count= stride=                    compare
 *     recv qp= count= len=                                    post receives
 *     expect qp= count= len= seed= op=send|send_imm|write_imm imm= secs=
 *        maybe=0|1                                        reap receives, compare, repost; maybe none arrive
 *     run qp= op= count= len= addr= rkey= stride= seed= imm= window= dqpn= qkey=   work as the requester
 *     state qp=            modify qp= state=err|reset            destroy qp=
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define REGION (8u << 20)
#define QPS 64
#define GRH 40
#define QKEY 0x11111111u

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *region;
static uint8_t cycle[2 * 251 * 4099];
static FILE *out;

struct end {
	struct ibv_qp *qp;
	struct ibv_qp_ex *ex;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_ah *ah;
	enum ibv_qp_type type;
	unsigned mtu, gid, psn, timeout, retry, rnr, rnrt, rd;
	uint32_t depth, recv_len, recv_next, dqpn;
};
static struct end ends[QPS];

static char line[1024];

/* The value of a key of the line, or a default. */
static uint64_t num(const char *key, uint64_t none)
{
	char want[32];
	const char *p;
	uint64_t v = 0;
	int base = 10, d;

	snprintf(want, sizeof want, " %s=", key);
	p = strstr(line, want);
	if (!p)
		return none;
	p += strlen(want);
	if (p[0] == '0' && p[1] == 'x') {
		base = 16;
		p += 2;
	}
	for (; *p && *p != ' ' && *p != '\n'; p++) {
		d = *p >= 'a' ? *p - 'a' + 10 : *p - '0';
		if (d < 0 || d >= base)
			return none;
		v = v * base + d;
	}
	return v;
}

static const char *text(const char *key, char *into, size_t room)
{
	char want[32];
	const char *p;
	size_t n = 0;

	snprintf(want, sizeof want, " %s=", key);
	p = strstr(line, want);
	if (p)
		for (p += strlen(want); *p && *p != ' ' && *p != '\n' && n + 1 < room; p++)
			into[n++] = *p;
	into[n] = 0;
	return into;
}

static void say(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vfprintf(out, format, list);
	va_end(list);
	fputc('\n', out);
	fflush(out);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Byte i of pattern s is (s + i) mod 251. */
static const uint8_t *pattern(uint64_t seed)
{
	return cycle + seed % 251;
}

static int differs(const uint8_t *at, uint64_t len, uint64_t seed)
{
	uint64_t i, part, whole = 251u * 4099u;

	for (i = 0; i < len; i += part) {
		part = len - i < whole ? len - i : whole;
		if (memcmp(at + i, pattern(seed + i), part))
			return 1;
	}
	return 0;
}

static void put(uint8_t *at, uint64_t len, uint64_t seed)
{
	uint64_t i, part, whole = 251u * 4099u;

	for (i = 0; i < len; i += part) {
		part = len - i < whole ? len - i : whole;
		memcpy(at + i, pattern(seed + i), part);
	}
}

static int receive(struct end *e, uint32_t n)
{
	struct ibv_sge sge = { .lkey = mr->lkey, .length = e->recv_len };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	for (; n; n--) {
		wr.wr_id = e->recv_next % e->depth;
		/* Receives use the upper half of the region. */
		sge.addr = (uintptr_t)region + REGION / 2 + wr.wr_id * ((e->recv_len + 63) / 64 * 64);
		e->recv_next++;
		if (e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad))
			return errno ? errno : EINVAL;
	}
	return 0;
}

static void open_qp(void)
{
	char type[16];
	struct end *e = ends;
	union ibv_gid gid;
	char hex[33];
	int i;

	while (e < ends + QPS && e->qp)
		e++;
	if (e == ends + QPS)
		return say("error no free queue pair");
	memset(e, 0, sizeof *e);
	text("type", type, sizeof type);
	e->type = !strcmp(type, "uc") ? IBV_QPT_UC : !strcmp(type, "ud") ? IBV_QPT_UD : IBV_QPT_RC;
	e->mtu = num("mtu", 3);
	e->gid = num("gid", 1);
	e->psn = num("psn", 0x123456);
	e->timeout = num("timeout", 14);
	e->retry = num("retry", 7);
	e->rnr = num("rnr", 7);
	e->rnrt = num("rnrt", 12);
	e->depth = num("depth", 64);
	e->cq = ibv_create_cq(ctx, 2 * e->depth + 16, NULL, NULL, 0);
	if (!e->cq)
		return say("error create_cq: %s", strerror(errno));
	if (num("srq", 0)) {
		struct ibv_srq_init_attr sa = { .attr = { .max_wr = e->depth, .max_sge = 1 } };
		e->srq = ibv_create_srq(pd, &sa);
		if (!e->srq)
			return say("error create_srq: %s", strerror(errno));
	}
	struct ibv_qp_init_attr_ex ia = {
		.send_cq = e->cq, .recv_cq = e->cq, .srq = e->srq, .qp_type = e->type, .sq_sig_all = 1,
		.cap = { .max_send_wr = e->depth, .max_recv_wr = e->srq ? 0 : e->depth, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd,
	};
#ifdef HAVE_ATOMIC_WRITE
	if (num("atomic_write", 0)) {
		ia.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		ia.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
	}
#endif
	if (num("raw", 0)) {
		ia.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		ia.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	}
	e->qp = ibv_create_qp_ex(ctx, &ia);
	if (!e->qp)
		return say("error create_qp: %s", strerror(errno));
	if (ia.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
		e->ex = ibv_qp_to_qp_ex(e->qp);
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
		.qp_access_flags = num("access", IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC),
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	mask |= e->type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	if (ibv_modify_qp(e->qp, &a, mask) || ibv_query_gid(ctx, 1, e->gid, &gid)) {
		int error = errno;
		ibv_destroy_qp(e->qp);
		e->qp = NULL;
		return say("error INIT: %s", strerror(error));
	}
	for (i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", gid.raw[i]);
	say("ok qp=%d qpn=%u psn=%u rkey=%u addr=%llu gid=%s qkey=%u", (int)(e - ends), e->qp->qp_num, e->psn, mr->rkey,
	    (unsigned long long)(uintptr_t)region, hex, QKEY);
}

static void connect_qp(struct end *e)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR };
	int mask = IBV_QP_STATE, i, try;
	char hex[33];

	text("dgid", hex, sizeof hex);
	for (i = 0; i < 16; i++) {
		char b[3] = { hex[2 * i], hex[2 * i + 1], 0 };
		a.ah_attr.grh.dgid.raw[i] = (b[0] >= 'a' ? b[0] - 'a' + 10 : b[0] - '0') << 4
			| (b[1] >= 'a' ? b[1] - 'a' + 10 : b[1] - '0');
	}
	a.ah_attr.is_global = 1;
	a.ah_attr.port_num = 1;
	a.ah_attr.grh.sgid_index = e->gid;
	a.ah_attr.grh.hop_limit = 64;
	a.ah_attr.grh.traffic_class = num("tc", 0);
	e->dqpn = num("qpn", 0);
	e->rd = num("rd", 4);
	if (e->type != IBV_QPT_UD) {
		a.path_mtu = e->mtu;
		a.dest_qp_num = e->dqpn;
		a.rq_psn = num("psn", 0);
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (e->type == IBV_QPT_RC) {
		a.max_dest_rd_atomic = e->rd;
		a.min_rnr_timer = e->rnrt;
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	}
	/* The kernel resolves the neighbour here, and its link may just have come up. */
	for (try = 0; ibv_modify_qp(e->qp, &a, mask); try++) {
		if (try == 20)
			return say("error RTR: %s", strerror(errno));
		usleep(100000);
	}
	if (e->type == IBV_QPT_UD) {
		for (try = 0; !(e->ah = ibv_create_ah(pd, &a.ah_attr)); try++) {
			if (try == 20)
				return say("error create_ah: %s", strerror(errno));
			usleep(100000);
		}
	}
	struct ibv_qp_attr s = {
		.qp_state = IBV_QPS_RTS, .sq_psn = e->psn, .timeout = e->timeout, .retry_cnt = e->retry, .rnr_retry = e->rnr,
		.max_rd_atomic = e->rd,
	};
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (e->type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	if (ibv_modify_qp(e->qp, &s, mask))
		return say("error RTS: %s", strerror(errno));
	say("ok");
}

static int poll_one(struct end *e, struct ibv_wc *wc, double until)
{
	int n, idle = 0;

	while (!(n = ibv_poll_cq(e->cq, 1, wc))) {
		if (now() > until)
			return 0;
		if (++idle > 100)
			usleep(idle < 1000 ? 20 : 500);
	}
	return n;
}

static void expect(struct end *e)
{
	uint64_t count = num("count", 1), len = num("len", 0), seed = num("seed", 0), imm = num("imm", 0), i;
	double until = now() + num("secs", 40);
	uint32_t slot = (e->recv_len + 63) / 64 * 64, grh = e->type == IBV_QPT_UD ? GRH : 0;
	int again = num("again", 1);
	struct ibv_wc wc;
	char op[16];

	text("op", op, sizeof op);
	for (i = 0; i < count; i++) {
		if (!poll_one(e, &wc, until)) {
			if (num("maybe", 0))
				return say("ok done=%llu", (unsigned long long)i);
			return say("error nothing arrived for message %llu", (unsigned long long)i);
		}
		if (!(wc.opcode & IBV_WC_RECV) && wc.status == IBV_WC_SUCCESS) {
			i--;
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS)
			return say("ok done=%llu status=%d", (unsigned long long)i, wc.status);
		uint8_t *at = region + REGION / 2 + wc.wr_id * slot;
		if (wc.byte_len != len + (strcmp(op, "write_imm") ? grh : 0))
			return say("error message %llu has %u bytes, not %llu", (unsigned long long)i, wc.byte_len,
				   (unsigned long long)(len + grh));
		if (strcmp(op, "write_imm") && differs(at + grh, len, seed + i))
			return say("error message %llu is not what was sent", (unsigned long long)i);
		if (strstr(op, "imm") && (!(wc.wc_flags & IBV_WC_WITH_IMM) || ntohl(wc.imm_data) != (uint32_t)(imm + i)))
			return say("error message %llu has immediate %#x, not %#x", (unsigned long long)i, ntohl(wc.imm_data),
				   (uint32_t)(imm + i));
		if (again && receive(e, 1))
			return say("error post_recv");
	}
	say("ok done=%llu", (unsigned long long)i);
}

static void run(struct end *e)
{
	uint64_t count = num("count", 1), len = num("len", 0), addr = num("addr", 0), stride = num("stride", 0);
	uint64_t seed = num("seed", 0), imm = num("imm", 0), window = num("window", 16), slots = num("slots", window), i;
	uint32_t rkey = num("rkey", 0);
	uint64_t posted = 0, done = 0, local = num("local", (len + 63) / 64 * 64);
	double until = now() + num("secs", 40);
	struct ibv_wc wc;
	char op[16];

	text("op", op, sizeof op);
	while (done < count) {
		while (posted < count && posted - done < window) {
			uint64_t slot = posted % slots;
			uint8_t *at = region + slot * local;
			struct ibv_sge sge = { (uintptr_t)at, len, mr->lkey };
			struct ibv_send_wr wr = { .wr_id = posted, .sg_list = &sge, .num_sge = 1 }, *bad;

			wr.wr.rdma.remote_addr = addr + slot * stride;
			wr.wr.rdma.rkey = rkey;
			wr.imm_data = htonl((uint32_t)(imm + posted));
			if (!strcmp(op, "send"))
				wr.opcode = IBV_WR_SEND;
			else if (!strcmp(op, "send_imm"))
				wr.opcode = IBV_WR_SEND_WITH_IMM;
			else if (!strcmp(op, "write"))
				wr.opcode = IBV_WR_RDMA_WRITE;
			else if (!strcmp(op, "write_imm"))
				wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
			else if (!strcmp(op, "read"))
				wr.opcode = IBV_WR_RDMA_READ;
			else if (!strcmp(op, "cas") || !strcmp(op, "fadd")) {
				wr.opcode = *op == 'c' ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
				wr.wr.atomic.remote_addr = addr;
				wr.wr.atomic.rkey = rkey;
				/* CAS counts up too: it expects the value that the one before stored. */
				wr.wr.atomic.compare_add = *op == 'c' ? seed + posted : 1;
				wr.wr.atomic.swap = seed + posted + 1;
			}
			if (!strcmp(op, "read"))
				memset(at, 0xee, len);
			else if (strcmp(op, "cas") && strcmp(op, "fadd"))
				put(at, len, seed + posted);
			if (e->type == IBV_QPT_UD) {
				wr.wr.ud.ah = e->ah;
				wr.wr.ud.remote_qpn = e->dqpn;
				wr.wr.ud.remote_qkey = num("qkey", QKEY);
			}
#ifdef HAVE_ATOMIC_WRITE
			if (e->ex && !strcmp(op, "atomic_write")) {
				uint64_t value;
				memcpy(&value, pattern(seed + posted), 8);
				ibv_wr_start(e->ex);
				e->ex->wr_id = posted;
				e->ex->wr_flags = IBV_SEND_SIGNALED;
				ibv_wr_atomic_write(e->ex, rkey, addr + slot * stride, &value);
				if (ibv_wr_complete(e->ex))
					return say("error post_send %llu", (unsigned long long)posted);
				posted++;
				continue;
			}
#endif
			if (e->ex && (!strcmp(op, "cas") || !strcmp(op, "fadd"))) {
				ibv_wr_start(e->ex);
				e->ex->wr_id = posted;
				e->ex->wr_flags = IBV_SEND_SIGNALED;
				if (*op == 'c')
					ibv_wr_atomic_cmp_swp(e->ex, rkey, addr, seed + posted, seed + posted + 1);
				else
					ibv_wr_atomic_fetch_add(e->ex, rkey, addr, 1);
				ibv_wr_set_sge(e->ex, mr->lkey, (uintptr_t)at, 8);
				if (ibv_wr_complete(e->ex))
					return say("error post_send %llu", (unsigned long long)posted);
				posted++;
				continue;
			}
			if (ibv_post_send(e->qp, &wr, &bad))
				return say("error post_send %llu: %s", (unsigned long long)posted, strerror(errno));
			posted++;
		}
		if (!poll_one(e, &wc, until))
			return say("error no completion of request %llu", (unsigned long long)done);
		if (wc.status == IBV_WC_SUCCESS && (wc.opcode & IBV_WC_RECV))
			continue;
		if (wc.status != IBV_WC_SUCCESS)
			return say("ok done=%llu status=%d wr=%llu", (unsigned long long)done, wc.status,
				   (unsigned long long)wc.wr_id);
		i = wc.wr_id;
		if (!strcmp(op, "read") && differs(region + i % slots * local, len, seed + i % slots))
			return say("error READ %llu is not what is there", (unsigned long long)i);
		if (!strcmp(op, "cas") || !strcmp(op, "fadd")) {
			uint64_t was;
			memcpy(&was, region + i % slots * local, 8);
			if (was != seed + i)
				return say("error atomic %llu found %llu, not %llu", (unsigned long long)i, (unsigned long long)was,
					   (unsigned long long)(seed + i));
		}
		done++;
	}
	say("ok done=%llu", (unsigned long long)done);
}

static int destroy(struct end *e)
{
	int bad = ibv_destroy_qp(e->qp);

	if (e->srq)
		bad |= ibv_destroy_srq(e->srq);
	if (e->ah)
		bad |= ibv_destroy_ah(e->ah);
	bad |= ibv_destroy_cq(e->cq);
	e->qp = NULL;
	return bad;
}

/* Whether the kernel answers ATOMIC WRITE (bit 40 of its capabilities), and whether the library can post it. */
static void atomic_write_ability(int *answers, int *posts)
{
	struct ibv_device_attr_ex d = { 0 };

	*answers = !ibv_query_device_ex(ctx, NULL, &d) && (d.device_cap_flags_ex >> 40 & 1);
	*posts = 0;
#ifdef HAVE_ATOMIC_WRITE
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex ia = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE,
	};
	struct ibv_qp *qp = cq ? ibv_create_qp_ex(ctx, &ia) : NULL;

	*posts = qp && ibv_qp_to_qp_ex(qp)->wr_atomic_write;
	if (qp)
		ibv_destroy_qp(qp);
	if (cq)
		ibv_destroy_cq(cq);
#endif
}

static void serve(FILE *in)
{
	static const char *const states[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
	struct ibv_device_attr d;
	struct utsname u;

	while (fgets(line, sizeof line, in)) {
		uint64_t n = num("qp", QPS);
		struct end *e = n < QPS && ends[n].qp ? &ends[n] : NULL;

		if (!strncmp(line, "hello", 5)) {
			uname(&u);
			ibv_query_device(ctx, &d);
			int answers, posts;
			atomic_write_ability(&answers, &posts);
			fprintf(out, "ok kernel=%s rd_atom=%d region=%u atomic_write=%d post_atomic_write=%d", u.release,
				d.max_qp_rd_atom, REGION, answers, posts);
			for (int i = 0; i < 16; i++) {
				static const union ibv_gid none;
				union ibv_gid gid;
				if (ibv_query_gid(ctx, 1, i, &gid) || !memcmp(&gid, &none, 16))
					continue;
				fprintf(out, " gid%d=", i);
				for (int b = 0; b < 16; b++)
					fprintf(out, "%02x", gid.raw[b]);
			}
			say("");
		} else if (!strncmp(line, "qp ", 3)) {
			open_qp();
		} else if (!strncmp(line, "fill ", 5) || !strncmp(line, "check ", 6)) {
			uint64_t off = num("off", 0), len = num("len", 0), seed = num("seed", 0);
			uint64_t count = num("count", 1), stride = num("stride", 0), i;

			if (off > REGION || count * stride + len > REGION - off) {
				say("error outside of the region");
				continue;
			}
			for (i = 0; i < count; i++) {
				if (line[0] == 'f')
					put(region + off + i * stride, len, seed + i);
				else if (differs(region + off + i * stride, len, seed + i))
					break;
			}
			if (i < count)
				say("error block %llu is not what was written", (unsigned long long)i);
			else
				say("ok");
		} else if (!strncmp(line, "word ", 5)) {
			uint64_t off = num("off", 0), v = num("set", UINT64_MAX);
			if (off > REGION - 8) {
				say("error outside of the region");
				continue;
			}
			if (v != UINT64_MAX)
				memcpy(region + off, &v, 8);
			memcpy(&v, region + off, 8);
			say("ok value=%llu", (unsigned long long)v);
		} else if (!strncmp(line, "bye", 3)) {
			say("ok");
			return;
		} else if (!e) {
			say("error no such verb or queue pair: %.40s", line);
		} else if (!strncmp(line, "connect ", 8)) {
			connect_qp(e);
		} else if (!strncmp(line, "recv ", 5)) {
			int bad;
			e->recv_len = num("len", 0) + (e->type == IBV_QPT_UD ? GRH : 0);
			bad = receive(e, num("count", 1));
			if (bad)
				say("error post_recv: %s", strerror(bad));
			else
				say("ok");
		} else if (!strncmp(line, "expect ", 7)) {
			expect(e);
		} else if (!strncmp(line, "run ", 4)) {
			run(e);
		} else if (!strncmp(line, "state ", 6)) {
			struct ibv_qp_attr a;
			struct ibv_qp_init_attr ia;
			ibv_query_qp(e->qp, &a, IBV_QP_STATE, &ia);
			say("ok state=%s", states[a.qp_state]);
		} else if (!strncmp(line, "destroy ", 8)) {
			say(destroy(e) ? "error destroy" : "ok");
		} else {
			say("error no such verb: %.40s", line);
		}
	}
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(18515) };
	int one = 1, l, s, i;

	for (i = 0; list && list[i]; i++)
		if (argc < 2 || !strcmp(ibv_get_device_name(list[i]), argv[1]))
			break;
	if (!list || !list[i] || !(ctx = ibv_open_device(list[i])))
		return fprintf(stderr, "peer: no device %s\n", argc > 1 ? argv[1] : ""), 1;
	for (i = 0; i < (int)sizeof cycle; i++)
		cycle[i] = i % 251;
	region = aligned_alloc(4096, REGION);
	pd = ibv_alloc_pd(ctx);
	mr = region && pd ? ibv_reg_mr(pd, region, REGION, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
				| IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC) : NULL;
	if (!mr)
		return perror("peer: reg_mr"), 1;
	l = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 1))
		return perror("peer: port 18515"), 1;
	/* The other side may close the connection in the middle of a line. */
	signal(SIGPIPE, SIG_IGN);
	while ((s = accept(l, NULL, NULL)) >= 0) {
		FILE *in = fdopen(s, "r");

		setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		out = fdopen(dup(s), "w");
		serve(in);
		for (i = 0; i < QPS; i++)
			if (ends[i].qp)
				destroy(&ends[i]);
		fclose(in);
		fclose(out);
	}
	return 0;
}
