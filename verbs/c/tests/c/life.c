/* What a process may do with an open device: fork, exec, cancel a thread, end. One story for each argument. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "check.h"
#include "ends.h"

static struct end one, two;

static void close_end(struct end *end)
{
	OK(ibv_destroy_qp(end->qp));
	OK(ibv_dereg_mr(end->mr));
	OK(ibv_destroy_cq(end->cq));
	OK(ibv_destroy_comp_channel(end->channel));
	OK(ibv_dealloc_pd(end->pd));
	OK(ibv_close_device(end->context));
	end->context = NULL;
}

/* A message to itself. */
static void talk(struct end *end)
{
	OK(receive_at(end));
	OK(send_from(end));
	IS(completion(end->cq).status, IBV_WC_SUCCESS);
	IS(completion(end->cq).status, IBV_WC_SUCCESS);
}

static void use_it_all(struct end *end)
{
	open_end(end, IBV_QPT_RC);
	connect_rc(end->qp, end->qp->qp_num, own_gid(end->context));
	talk(end);
}

static int child_ended(pid_t child)
{
	int status;
	if (waitpid(child, &status, 0) != child)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

/* Before the first use parent and child are two programs. */
static void fork_before(void)
{
	struct ibv_device **list = MUST(ibv_get_device_list(NULL));
	pid_t child = fork();
	use_it_all(&one);
	close_end(&one);
	ibv_free_device_list(list);
	if (child == 0)
		exit(failures != 0);
	IS(child_ended(child), 0);
}

/* An open device is two after a fork, under the same pointer. */
static void fork_opened(void)
{
	one.context = open_first();
	struct ibv_pd *of_parent = MUST(ibv_alloc_pd(one.context));
	pid_t child = fork();
	if (child == 0) {
		struct ibv_port_attr port;
		OK(ibv_query_port(one.context, 1, &port));
		NO_OBJECT(ibv_reg_mr(of_parent, one.memory, 64, 0), EIO);
	}
	use_it_all(&one);
	struct ibv_async_event event;
	fcntl(one.context->async_fd, F_SETFL, O_NONBLOCK);
	MINUS_ONE(ibv_get_async_event(one.context, &event), EAGAIN);
	if (child == 0)
		exit(failures != 0);
	IS(child_ended(child), 0);
	OK(ibv_dealloc_pd(of_parent));
	close_end(&one);
}

/* The parent's objects are refused in a child, whatever it does meanwhile, and the parent does not notice that. */
static void fork_started(void)
{
	use_it_all(&one);
	pid_t child = fork();
	if (child == 0) {
		struct ibv_wc wc;
		struct ibv_recv_wr recv = { 0 }, *bad_recv;
		struct ibv_send_wr send = { 0 }, *bad_send;
		REFUSED(ibv_post_recv(one.qp, &recv, &bad_recv), EIO);
		REFUSED(ibv_post_send(one.qp, &send, &bad_send), EIO);
		IS(ibv_poll_cq(one.cq, 1, &wc), -EIO);
		NO_OBJECT(ibv_reg_mr(one.pd, one.memory, 64, 0), EIO);
		REFUSED(ibv_destroy_qp(one.qp), EIO);
		OK(ibv_close_device(one.context));
		exit(failures != 0); /* with the handlers that the parent has registered */
	}
	talk(&one);
	IS(child_ended(child), 0);
	talk(&one);
	close_end(&one);
}

/* While the parent's device works a child has its own: under the parent's pointer, and opened anew. */
static void fork_beside(void)
{
	use_it_all(&one);
	union ibv_gid of_parent = own_gid(one.context);
	pid_t child = fork();
	if (child == 0) {
		two.context = one.context;
		use_it_all(&two);
		union ibv_gid gid = own_gid(two.context);
		IS(strncmp(getenv("ROCE_PORT"), "memif", 5) || memcmp(&gid, &of_parent, sizeof gid), 1);
		close_end(&two);
		use_it_all(&two);
		close_end(&two);
		exit(failures != 0);
	}
	while (waitpid(child, NULL, WNOHANG) == 0)
		talk(&one);
	talk(&one);
	close_end(&one);
}

/* Uses the device as a program that was just started; in a child it ends with that. */
static void use_and_close(pid_t child)
{
	use_it_all(&one);
	close_end(&one);
	if (child == 0)
		exit(failures != 0);
}

/* Children use the device one after the other, and then the parent does. */
static void each_in_turn(void)
{
	for (int i = 0; i < 3; i++) {
		pid_t child = fork();
		if (child == 0)
			use_and_close(child);
		IS(child_ended(child), 0);
	}
	use_and_close(1);
}

/* A process that has closed everything forks as if it had never had a device. Each child does so, too: grandchildren. */
static void fork_closed(int generations)
{
	use_it_all(&one);
	close_end(&one);
	pid_t child = fork();
	if (child == 0) {
		use_it_all(&one);
		close_end(&one);
		if (generations > 1)
			fork_closed(generations - 1);
		exit(failures != 0);
	}
	IS(child_ended(child), 0);
	use_it_all(&one);
	close_end(&one);
}

/* Looking at the device's name and number leaves nothing. */
static void fork_listed(void)
{
	struct ibv_device **list = MUST(ibv_get_device_list(NULL));
	unsigned long long guid = ibv_get_device_guid(list[0]);
	IS(guid != 0, 1);
	each_in_turn();
	IS(ibv_get_device_guid(list[0]) == guid, 1);
	ibv_free_device_list(list);
}

/* rdma_cm's list of devices likewise: its contexts remain, and are the child's there. */
static void fork_listed_by_cm(void)
{
	struct ibv_context **list = MUST(rdma_get_devices(NULL));
	struct ibv_context *context = list[0];
	struct ibv_device_attr attr;
	OK(ibv_query_device(context, &attr));
	rdma_free_devices(list);
	pid_t child = fork();
	if (child == 0) {
		one.context = context;
		use_it_all(&one);
		exit(failures != 0);
	}
	IS(child_ended(child), 0);
	one.context = context;
	use_it_all(&one);
}

/* daemon(3) after a look at the device: the parent is gone, and so are all descriptors. */
static void daemonized(void)
{
	int result[2];
	char good = 0;
	use_it_all(&one);
	union ibv_gid before = own_gid(one.context), after;
	close_end(&one);
	OK(pipe(result));
	pid_t child = fork();
	if (child == 0) {
		setsid();
		if (fork())
			_exit(0);
		for (int fd = 3; fd < 1024; fd++)
			if (fd != result[1])
				close(fd);
		use_it_all(&one);
		after = own_gid(one.context);
		IS(memcmp(&before, &after, sizeof before), 0);
		close_end(&one);
		each_in_turn();
		good = failures == 0;
		IS(write(result[1], &good, 1), 1);
		exit(0);
	}
	IS(child_ended(child), 0);
	close(result[1]);
	IS(read(result[0], &good, 1), 1);
	IS(good, 1);
}

/* A server that starts its workers after a look at the device: all of them have one at once. */
static void prefork(void)
{
	enum { WORKERS = 4 };
	pid_t workers[WORKERS];
	int ready[2], go[2];
	char byte = 0;
	use_it_all(&one);
	close_end(&one);
	OK(pipe(ready) | pipe(go));
	for (int i = 0; i < WORKERS; i++) {
		workers[i] = fork();
		if (workers[i] == 0) {
			close(go[1]);
			use_it_all(&one);
			IS(write(ready[1], &byte, 1), 1);
			IS(read(go[0], &byte, 1), 0);
			talk(&one);
			close_end(&one);
			exit(failures != 0);
		}
	}
	for (int i = 0; i < WORKERS; i++)
		IS(read(ready[0], &byte, 1), 1);
	close(go[1]);
	for (int i = 0; i < WORKERS; i++)
		IS(child_ended(workers[i]), 0);
}

static int enough;

/* Opens the device, which a new child may have for the moment until it gives it back. */
static struct ibv_context *open_at_last(void)
{
	struct ibv_device **list = MUST(ibv_get_device_list(NULL));
	struct ibv_context *context;
	while (!(context = ibv_open_device(list[0])))
		usleep(1000);
	ibv_free_device_list(list);
	return context;
}

/* Opens, uses and closes the device. */
static void *again_and_again(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&enough, __ATOMIC_ACQUIRE)) {
		one.context = open_at_last();
		use_it_all(&one);
		close_end(&one);
	}
	return NULL;
}

/* Forks at any moment of another thread's open and close. No child keeps the port from that thread for good. */
static void fork_any_time(void)
{
	enum { FORKS = 100 };
	pid_t children[FORKS];
	pthread_t thread;
	int go[2];
	char byte;
	OK(pipe(go));
	OK(pthread_create(&thread, NULL, again_and_again, NULL));
	for (int i = 0; i < FORKS; i++) {
		usleep(500);
		children[i] = fork();
		if (children[i] == 0) {
			close(go[1]);
			_exit(read(go[0], &byte, 1) != 0);
		}
	}
	__atomic_store_n(&enough, 1, __ATOMIC_RELEASE);
	OK(pthread_join(thread, NULL));
	/* With all of them there. */
	one.context = open_at_last();
	use_it_all(&one);
	close_end(&one);
	close(go[1]);
	for (int i = 0; i < FORKS; i++)
		IS(child_ended(children[i]), 0);
}

/* A child that closes everything may use the numbers of its parent's descriptors for files, and its own children have them. */
static void fork_files(void)
{
	enum { FILES = 64 };
	struct stat file;
	use_it_all(&one);
	pid_t child = fork();
	if (child == 0) {
		for (int fd = 3; fd < 1024; fd++)
			close(fd);
		for (int i = 0; i < FILES; i++)
			IS(open("/dev/null", O_RDONLY | O_CLOEXEC), 3 + i);
		pid_t grandchild = fork();
		for (int i = 0; i < FILES; i++)
			IS(fstat(3 + i, &file) == 0 && S_ISCHR(file.st_mode), 1);
		if (grandchild)
			IS(child_ended(grandchild), 0);
		_exit(failures != 0);
	}
	IS(child_ended(child), 0);
	talk(&one);
	close_end(&one);
}

/* Programs that are started without fork(2) leave the device alone. */
static void spawn(void)
{
	char *args[] = { "true", NULL };
	pid_t child;
	use_it_all(&one);
	OK(posix_spawnp(&child, args[0], NULL, NULL, args, environ));
	talk(&one);
	IS(child_ended(child), 0);
	child = vfork();
	if (child == 0) {
		execvp(args[0], args);
		_exit(1);
	}
	talk(&one);
	IS(child_ended(child), 0);
	close_end(&one);
}

/* Descriptors of this process, as a text. */
static void list_descriptors(char *text, size_t size)
{
	DIR *dir = MUST(opendir("/proc/self/fd"));
	struct dirent *entry;
	size_t len = 0;
	text[0] = 0;
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir))
			len += snprintf(text + len, size - len, " %s", entry->d_name);
	closedir(dir);
}

/* A started program inherits what its starter had before it used the library, and no more. */
static void descriptors(const char *before)
{
	char now[4096];
	list_descriptors(now, sizeof now);
	if (strcmp(now, before)) {
		fprintf(stderr, "descriptors were%s, and are%s\n", before, now);
		failures++;
	}
}

static void exec(const char *self)
{
	char before[4096];
	list_descriptors(before, sizeof before);
	use_it_all(&one);
	execl(self, self, "descriptors", before, NULL);
	perror(self);
	failures++;
}

/* Threads of this process; each but the first has every signal blocked that can be, so that the program's handlers run on threads
 * of the program. */
static int threads(void)
{
	const unsigned long long never = 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1) | 3ull << 31; /* and two of the C library's */
	DIR *dir = MUST(opendir("/proc/self/task"));
	struct dirent *entry;
	int count = 0;
	while ((entry = readdir(dir))) {
		char path[300], line[256];
		unsigned long long blocked = 0;
		if (entry->d_name[0] == '.')
			continue;
		count++;
		if (atoi(entry->d_name) == getpid())
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
		FILE *status = fopen(path, "r");
		while (status && fgets(line, sizeof line, status))
			sscanf(line, "SigBlk: %llx", &blocked);
		if (status) { /* or it has just ended */
			fclose(status);
			IS(blocked | never, -1ll);
		}
	}
	closedir(dir);
	return count;
}

/* Descriptors that are sockets, events and the like: those of a device. */
static int device_descriptors(void)
{
	DIR *dir = MUST(opendir("/proc/self/fd"));
	struct dirent *entry;
	int count = 0;
	while ((entry = readdir(dir))) {
		char target[256] = "";
		if (readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1) > 0 && atoi(entry->d_name) > 2)
			count += !strncmp(target, "socket:", 7) || !strncmp(target, "anon_inode:", 11);
	}
	closedir(dir);
	return count;
}

/* What starts when: nothing with the library, nothing outside of the process with the device, and the port with the first object that
 * needs it. The port is a socket at a path. */
static void beginnings(void)
{
	const char *path = strchr(MUST(getenv("ROCE_PORT")), '/');
	IS(threads(), 1);
	IS(device_descriptors(), 0);
	struct ibv_device **list = MUST(ibv_get_device_list(NULL));
	IS(strcmp(ibv_get_device_name(list[0]), "roce0"), 0);
	IS(threads(), 1);
	IS(device_descriptors(), 0);
	one.context = MUST(ibv_open_device(list[0]));
	ibv_free_device_list(list);
	struct ibv_port_attr port;
	struct ibv_device_attr attr;
	OK(ibv_query_port(one.context, 1, &port));
	OK(ibv_query_device(one.context, &attr));
	own_gid(one.context);
	struct ibv_pd *pd = MUST(ibv_alloc_pd(one.context));
	struct ibv_cq *cq = MUST(ibv_create_cq(one.context, 4, NULL, NULL, 0));
	struct ibv_mr *mr = MUST(ibv_reg_mr(pd, one.memory, sizeof one.memory, 0));
	threads(); /* looks at those there are */
	IS(access(path, F_OK), -1);
	struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC);
	IS(access(path, F_OK), 0);
	IS(threads() > 1, 1);
	OK(ibv_destroy_qp(qp));
	OK(ibv_dereg_mr(mr));
	OK(ibv_destroy_cq(cq));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_close_device(one.context));
	/* The last object is gone, and its threads end. */
	while (threads() > 1)
		usleep(1000);
	IS(access(path, F_OK), -1);
}

static void *wait_for_completion(void *unused)
{
	struct ibv_cq *cq;
	void *context;
	(void)unused;
	OK(ibv_req_notify_cq(one.cq, 0));
	ibv_get_cq_event(one.channel, &cq, &context);
	return NULL; /* never */
}

static void *wait_for_event(void *unused)
{
	struct ibv_async_event event;
	(void)unused;
	ibv_get_async_event(one.context, &event);
	return NULL; /* never */
}

static void *call_without_end(void *unused)
{
	struct ibv_wc wc;
	(void)unused;
	for (;;) {
		struct ibv_pd *pd = ibv_alloc_pd(one.context);
		if (pd)
			ibv_dealloc_pd(pd);
		ibv_poll_cq(one.cq, 1, &wc);
		pthread_testcancel();
	}
	return NULL;
}

/* Sends, retries, and a capture of them, while the cancellation is pending. */
static void *send_to_nobody(void *unused)
{
	(void)unused;
	OK(pthread_cancel(pthread_self()));
	OK(send_from(&two));
	IS(completion(two.cq).status, IBV_WC_RETRY_EXC_ERR);
	pthread_testcancel();
	return NULL; /* never */
}

/* A thread that waits, polls or sends is cancelled, and everything goes on. */
static void cancel(void)
{
	use_it_all(&one);
	open_end(&two, IBV_QPT_RC);
	union ibv_gid nobody = own_gid(two.context);
	nobody.raw[15] ^= 2;
	connect_rc(two.qp, two.qp->qp_num, nobody);
	void *(*jobs[])(void *) = { wait_for_completion, wait_for_event, call_without_end, send_to_nobody };
	for (int i = 0; i < 4; i++) {
		pthread_t thread;
		void *result;
		OK(pthread_create(&thread, NULL, jobs[i], NULL));
		usleep(1000 * i); /* before it waits, or while it does: both are right */
		if (jobs[i] != send_to_nobody)
			OK(pthread_cancel(thread));
		OK(pthread_join(thread, &result));
		IS(result == PTHREAD_CANCELED, 1);
	}
	talk(&one);
	/* An event still reaches who waits for it. */
	OK(ibv_req_notify_cq(one.cq, 0));
	OK(receive_at(&one));
	OK(send_from(&one));
	struct ibv_cq *cq = NULL;
	void *context;
	OK(ibv_get_cq_event(one.channel, &cq, &context));
	IS(cq == one.cq, 1);
	ibv_ack_cq_events(cq, 1);
	close_end(&two);
	close_end(&one);
}

/* The end of a process while its threads work, without a word to the library. */
static void *poll_for_ever(void *unused)
{
	struct ibv_wc wc;
	(void)unused;
	for (;;)
		ibv_poll_cq(one.cq, 1, &wc);
	return NULL;
}

static void leave(void)
{
	use_it_all(&one);
	pthread_t thread;
	OK(pthread_create(&thread, NULL, poll_for_ever, NULL));
	exit(failures != 0);
}

static int use_at_the_end;

/* Objects of a program may end in its destructors, after `main`. */
__attribute__((destructor)) static void at_the_end(void)
{
	if (!use_at_the_end)
		return;
	talk(&one);
	close_end(&one);
	if (failures)
		_exit(1);
}

static void destructors(void)
{
	use_it_all(&one);
	use_at_the_end = 1;
}

struct address {
	union ibv_gid gid;
	unsigned int qp_num;
};

static struct address meet(int socket, const struct end *end)
{
	struct address mine = { own_gid(end->context), end->qp->qp_num }, peer;
	IS(write(socket, &mine, sizeof mine), sizeof mine);
	IS(read(socket, &peer, sizeof peer), sizeof peer);
	return peer;
}

/* Two processes over their link. The one that has got the message ends at once: its acknowledgement has left before. */
static void last_completion(void)
{
	int sockets[2];
	char go;
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	pid_t child = fork();
	int socket = sockets[child == 0];
	open_end(&one, IBV_QPT_RC);
	struct address peer = meet(socket, &one);
	connect_rc(one.qp, peer.qp_num, peer.gid);
	if (child == 0) {
		OK(receive_at(&one));
		IS(write(socket, "g", 1), 1);
		IS(completion(one.cq).status, IBV_WC_SUCCESS);
		exit(failures != 0);
	}
	IS(read(socket, &go, 1), 1);
	OK(send_from(&one));
	IS(completion(one.cq).status, IBV_WC_SUCCESS);
	IS(child_ended(child), 0);
	close_end(&one);
}

/* A datagram that was posted leaves, though its process ends at once: it may wait for the completion, and need not. */
static void last_datagram(int awaited)
{
	int sockets[2];
	char go;
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	pid_t child = fork();
	int socket = sockets[child == 0];
	open_end(&one, IBV_QPT_UD);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234 };
	OK(ibv_modify_qp(one.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	OK(ibv_modify_qp(one.qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	OK(ibv_modify_qp(one.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	OK(receive_at(&one));
	OK(receive_at(&one));
	struct address peer = meet(socket, &one);
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1,
				  .grh = { .dgid = peer.gid, .sgid_index = 1, .hop_limit = 4 } };
	struct ibv_ah *ah = MUST(ibv_create_ah(one.pd, &to));
	struct ibv_sge sge = { .addr = (uintptr_t)one.memory + 128, .length = 8, .lkey = one.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.ud = { .ah = ah, .remote_qpn = peer.qp_num, .remote_qkey = 0x1234 } }, *bad;
	struct ibv_wc wc;
	if (child == 0) {
		/* The first one finds the way, and the link. */
		OK(ibv_post_send(one.qp, &wr, &bad));
		IS(completion(one.cq).status, IBV_WC_SUCCESS);
		IS(read(socket, &go, 1), 1);
		OK(ibv_post_send(one.qp, &wr, &bad));
		if (awaited)
			IS(completion(one.cq).status, IBV_WC_SUCCESS);
		exit(failures != 0);
	}
	wc = completion(one.cq);
	IS(wc.status == IBV_WC_SUCCESS && wc.byte_len == 48 && wc.wc_flags & IBV_WC_GRH, 1);
	struct ibv_ah *back = MUST(ibv_create_ah_from_wc(one.pd, &wc, (struct ibv_grh *)one.memory, 1));
	OK(ibv_destroy_ah(back));
	IS(write(socket, "g", 1), 1);
	wc = completion(one.cq);
	IS(wc.status, IBV_WC_SUCCESS);
	IS(child_ended(child), 0);
	OK(ibv_destroy_ah(ah));
	close_end(&one);
}

static void await_event(struct rdma_event_channel *channel, enum rdma_cm_event_type type, struct rdma_cm_id **id)
{
	struct rdma_cm_event *event;
	OK(rdma_get_cm_event(channel, &event));
	IS(event->event, type);
	if (id)
		*id = event->id;
	OK(rdma_ack_cm_event(event));
}

static void with_a_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1, .max_recv_wr = 1 } };
	OK(rdma_create_qp(id, NULL, &init));
}

/* A server takes the next request. */
static void accept_one(struct rdma_event_channel *channel)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_id *accepted;
	await_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST, &accepted);
	with_a_queue_pair(accepted);
	OK(rdma_accept(accepted, &param));
	await_event(channel, RDMA_CM_EVENT_ESTABLISHED, NULL);
}

/* A client connects, once the server's address is resolved. */
static void connect_resolved(struct rdma_event_channel *channel, struct rdma_cm_id *id)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	OK(rdma_resolve_route(id, 60000));
	await_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
	with_a_queue_pair(id);
	OK(rdma_connect(id, &param));
	await_event(channel, RDMA_CM_EVENT_ESTABLISHED, NULL);
}

/* One of two connected processes ends without a word, by exit or by a signal: the other one is told. */
static void last_words(int signal)
{
	int sockets[2], status;
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	pid_t child = fork();
	int socket = sockets[child == 0];
	struct rdma_event_channel *channel = MUST(rdma_create_event_channel());
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(7471) };
	struct rdma_cm_id *id;
	union ibv_gid gid;
	if (child == 0 && signal)
		setenv("ROCE_PORT", getenv("ROCE_VISITOR"), 1);
	OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	if (child == 0) {
		struct sigaction action;
		OK(rdma_bind_addr(id, (struct sockaddr *)&address));
		OK(rdma_listen(id, 1));
		gid = own_gid(open_first());
		IS(write(socket, &gid, sizeof gid), sizeof gid);
		/* Of the two signals that the library looks after, what the program has set stays. */
		sigaction(signal == SIGTERM ? SIGINT : SIGTERM, &(struct sigaction){ .sa_handler = SIG_IGN }, NULL);
		accept_one(channel);
		OK(sigaction(signal == SIGTERM ? SIGINT : SIGTERM, NULL, &action));
		IS(action.sa_handler == SIG_IGN, 1);
		if (signal && !failures && write(socket, "c", 1) == 1)
			pause();
		exit(failures != 0);
	}
	IS(read(socket, &gid, sizeof gid), sizeof gid);
	memcpy(&address.sin_addr, gid.raw + 12, 4);
	OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 60000));
	await_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	connect_resolved(channel, id);
	if (signal) {
		char go;
		IS(read(socket, &go, 1), 1);
		OK(kill(child, signal));
	}
	await_event(channel, RDMA_CM_EVENT_DISCONNECTED, NULL);
	IS(waitpid(child, &status, 0), child);
	IS(signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal : status == 0, 1);
	rdma_destroy_qp(id);
	OK(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* Whether SIGINT and SIGTERM end the process without more ado. */
static int ends_at_once(void)
{
	struct sigaction interrupted, terminated;
	OK(sigaction(SIGINT, NULL, &interrupted));
	OK(sigaction(SIGTERM, NULL, &terminated));
	return interrupted.sa_handler == SIG_DFL && terminated.sa_handler == SIG_DFL;
}

/* A process with a queue pair looks after its links when a signal ends it, if its port has any; until then nothing is changed. */
static void looks_after_links(int has_links)
{
	/* The host's own network may be in use. */
	if (has_links)
		OK(unshare(CLONE_NEWNET));
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = MUST(ibv_alloc_pd(context));
	struct ibv_cq *cq = MUST(ibv_create_cq(context, 1, NULL, NULL, 0));
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap = { .max_send_wr = 1, .max_recv_wr = 1 }
	};
	IS(ends_at_once(), 1);
	struct ibv_qp *qp = MUST(ibv_create_qp(pd, &init));
	IS(ends_at_once(), !has_links);
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_cq(cq));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_close_device(context));
}

/* Whether all threads of a process are stopped. */
static int is_stopped(pid_t pid)
{
	char path[320], state;
	struct dirent *thread;
	int running = 0;
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	DIR *threads = MUST(opendir(path));
	while ((thread = readdir(threads))) {
		snprintf(path, sizeof path, "/proc/%d/task/%s/stat", pid, thread->d_name);
		FILE *stat = fopen(path, "r");
		if (thread->d_name[0] != '.' && stat)
			running += fscanf(stat, "%*d (%*[^)]) %c", &state) != 1 || state != 'T';
		if (stat)
			fclose(stat);
	}
	closedir(threads);
	return !running;
}

/* A process whose peer does not answer for a while: it goes on telling, says so, and the peer is told of each connection. */
static void patient_words(void)
{
	enum { CONNECTIONS = 50 };
	int sockets[2];
	char words[4096] = "", go;
	FILE *said = MUST(tmpfile());
	pid_t parent = getpid();
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	/* It makes the parent go on, once the child has said that it waits. */
	pid_t wakes = fork();
	if (wakes == 0) {
		struct stat file;
		do {
			usleep(1000);
			OK(fstat(fileno(said), &file));
		} while (file.st_size == 0);
		kill(parent, SIGCONT);
		_exit(0);
	}
	pid_t child = fork();
	int socket = sockets[child == 0];
	struct rdma_event_channel *channel = MUST(rdma_create_event_channel());
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(7471) };
	struct rdma_cm_id *ids[CONNECTIONS], *listener;
	union ibv_gid gid;
	if (child == 0) {
		OK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
		OK(rdma_bind_addr(listener, (struct sockaddr *)&address));
		OK(rdma_listen(listener, 1));
		gid = own_gid(open_first());
		IS(write(socket, &gid, sizeof gid), sizeof gid);
		for (int i = 0; i < CONNECTIONS; i++)
			accept_one(channel);
		IS(read(socket, &go, 1), 1);
		IS(dup2(fileno(said), 2), 2);
		OK(kill(parent, SIGSTOP));
		while (!is_stopped(parent))
			usleep(1000);
		exit(failures != 0);
	}
	IS(read(socket, &gid, sizeof gid), sizeof gid);
	memcpy(&address.sin_addr, gid.raw + 12, 4);
	for (int i = 0; i < CONNECTIONS; i++) {
		OK(rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP));
		OK(rdma_resolve_addr(ids[i], NULL, (struct sockaddr *)&address, 60000));
		await_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
		connect_resolved(channel, ids[i]);
	}
	IS(write(socket, "g", 1), 1);
	for (int i = 0; i < CONNECTIONS; i++)
		await_event(channel, RDMA_CM_EVENT_DISCONNECTED, NULL);
	IS(child_ended(child), 0);
	IS(child_ended(wakes), 0);
	rewind(said);
	IS(fread(words, 1, sizeof words - 1, said) > 0, 1);
	IS(strstr(words, "have not answered") != NULL, 1);
	for (int i = 0; i < CONNECTIONS; i++) {
		rdma_destroy_qp(ids[i]);
		OK(rdma_destroy_id(ids[i]));
	}
	rdma_destroy_event_channel(channel);
}

/* A client opens the device before its server does, and has the first address: by that one it reaches the server all the same, and so
 * does a server that is bound to it. */
static void first_client(int bound)
{
	int sockets[2];
	char go;
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	pid_t child = fork();
	int socket = sockets[child == 0];
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(7471) };
	struct rdma_cm_id *id;
	if (child == 0)
		IS(read(socket, &go, 1), 1);
	struct rdma_event_channel *channel = MUST(rdma_create_event_channel());
	OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	IS(own_gid(open_first()).raw[15], child ? 1 : 2);
	if (child == 0) {
		if (bound)
			address.sin_addr.s_addr = inet_addr("10.77.0.1");
		OK(rdma_bind_addr(id, (struct sockaddr *)&address));
		OK(rdma_listen(id, 1));
		IS(write(socket, "l", 1), 1);
		accept_one(channel);
		await_event(channel, RDMA_CM_EVENT_DISCONNECTED, NULL);
		exit(failures != 0);
	}
	address.sin_addr.s_addr = inet_addr("10.77.0.1");
	OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 60000));
	IS(write(socket, "g", 1), 1);
	await_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	IS(read(socket, &go, 1), 1);
	connect_resolved(channel, id);
	OK(rdma_disconnect(id));
	await_event(channel, RDMA_CM_EVENT_DISCONNECTED, NULL);
	IS(child_ended(child), 0);
	rdma_destroy_qp(id);
	OK(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* A line about an error that cannot be written is lost, and no more. */
static void mute(void)
{
	IS(dup2(open("/dev/full", O_WRONLY), 2), 2);
	setenv("ROCE_PORT", "nowhere", 1);
	struct ibv_device **list = MUST(ibv_get_device_list(NULL));
	NO_OBJECT(ibv_open_device(list[0]), EINVAL);
	ibv_free_device_list(list);
}

static double cpu_seconds(const struct rusage *usage)
{
	return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) +
	       1e-6 * (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
}

/* A queue pair that is connected to an address where nobody is, and a program that does nothing: nor does the device. A busy machine
 * makes the numbers smaller. */
static void idle(int seconds)
{
	struct rusage before, after;
	open_end(&one, IBV_QPT_RC);
	union ibv_gid nobody = own_gid(one.context);
	nobody.raw[15] ^= 0x40;
	connect_rc(one.qp, 0x123456, nobody);
	getrusage(RUSAGE_SELF, &before);
	sleep(seconds);
	getrusage(RUSAGE_SELF, &after);
	long wakes = (after.ru_nvcsw - before.ru_nvcsw) / seconds;
	printf("%.2f %% of a core, %ld wakes a second\n", 100 * (cpu_seconds(&after) - cpu_seconds(&before)) / seconds,
	       wakes);
	IS(wakes < 100, 1);
	close_end(&one);
}

int main(int argc, char **argv)
{
	const char *story = argc > 1 ? argv[1] : "";
	if (!strcmp(story, "beginnings"))
		beginnings();
	else if (!strcmp(story, "fork-before"))
		fork_before();
	else if (!strcmp(story, "fork-opened"))
		fork_opened();
	else if (!strcmp(story, "fork-started"))
		fork_started();
	else if (!strcmp(story, "fork-beside"))
		fork_beside();
	else if (!strcmp(story, "fork-closed"))
		fork_closed(3);
	else if (!strcmp(story, "fork-listed"))
		fork_listed();
	else if (!strcmp(story, "fork-listed-by-cm"))
		fork_listed_by_cm();
	else if (!strcmp(story, "fork-any-time"))
		fork_any_time();
	else if (!strcmp(story, "fork-files"))
		fork_files();
	else if (!strcmp(story, "daemon"))
		daemonized();
	else if (!strcmp(story, "prefork"))
		prefork();
	else if (!strcmp(story, "spawn"))
		spawn();
	else if (!strcmp(story, "descriptors"))
		descriptors(argc > 2 ? argv[2] : "");
	else if (!strcmp(story, "exec"))
		exec(argv[0]);
	else if (!strcmp(story, "cancel"))
		cancel();
	else if (!strcmp(story, "leave"))
		leave();
	else if (!strcmp(story, "destructors"))
		destructors();
	else if (!strcmp(story, "last-completion"))
		last_completion();
	else if (!strcmp(story, "last-datagram"))
		last_datagram(1);
	else if (!strcmp(story, "last-post"))
		last_datagram(0);
	else if (!strcmp(story, "idle"))
		idle(argc > 2 ? atoi(argv[2]) : 3);
	else if (!strcmp(story, "mute"))
		mute();
	else if (!strcmp(story, "last-words"))
		last_words(0);
	else if (!strcmp(story, "interrupted"))
		last_words(SIGINT);
	else if (!strcmp(story, "terminated"))
		last_words(SIGTERM);
	else if (!strcmp(story, "links"))
		looks_after_links(1);
	else if (!strcmp(story, "no-links"))
		looks_after_links(0);
	else if (!strcmp(story, "first-client"))
		first_client(0);
	else if (!strcmp(story, "first-client-bound"))
		first_client(1);
	else if (!strcmp(story, "patient-words"))
		patient_words();
	else
		return 3;
	return failures != 0;
}
