/* Whom an event reaches, and what becomes of it when its object or its context ends. One story for each argument; a story that hangs
 * has failed. */
#include <dirent.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "check.h"
#include "filter.h"

/* What has events: a queue pair on a shared receive queue, and a completion queue with its channel. */
struct source {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
};

static struct source make_source(struct ibv_context *context)
{
	struct source of = { .context = context, .pd = MUST(ibv_alloc_pd(context)), .channel = MUST(ibv_create_comp_channel(context)) };
	of.cq = MUST(ibv_create_cq(context, 16, NULL, of.channel, 0));
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	of.srq = MUST(ibv_create_srq(of.pd, &srq_init));
	struct ibv_qp_init_attr init = { .send_cq = of.cq, .recv_cq = of.cq, .srq = of.srq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 8, .max_send_sge = 1, .max_inline_data = 8 } };
	of.qp = MUST(ibv_create_qp(of.pd, &init));
	return of;
}

static void end_rest(struct source *of)
{
	OK(ibv_destroy_srq(of->srq));
	if (of->cq)
		OK(ibv_destroy_cq(of->cq));
	OK(ibv_destroy_comp_channel(of->channel));
	OK(ibv_dealloc_pd(of->pd));
}

/* In the error state a queue pair on a shared receive queue takes nothing more of it, and says so at once. */
static void fail(struct ibv_qp *qp)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	OK(ibv_modify_qp(qp, &error, IBV_QP_STATE));
}

static int readable(int fd, int timeout_ms)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	return poll(&wait, 1, timeout_ms);
}

static void do_not_block(int fd)
{
	fcntl(fd, F_SETFL, O_NONBLOCK);
}

static void no_event(struct ibv_context *context)
{
	struct ibv_async_event event;
	MINUS_ONE(ibv_get_async_event(context, &event), EAGAIN);
}

static void expect_last_wqe(struct ibv_context *context, struct ibv_qp *qp, struct ibv_async_event *event)
{
	IS(readable(context->async_fd, -1), 1);
	OK(ibv_get_async_event(context, event));
	IS(event->event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
	IS(event->element.qp == qp, 1);
}

static int threads(void)
{
	int count = -2; /* itself, and what is above */
	DIR *dir = MUST(opendir("/proc/self/task"));
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* A context's descriptor is readable for its own events only. */
static void whose(void)
{
	struct ibv_context *first = open_first(), *second = open_first();
	struct source of = make_source(second), other = make_source(first);
	struct ibv_async_event event;
	for (int i = 0; i < 2; i++) {
		fail(i ? other.qp : of.qp);
		IS(readable(i ? first->async_fd : second->async_fd, -1), 1);
		IS(readable(i ? second->async_fd : first->async_fd, 0), 0);
		expect_last_wqe(i ? first : second, i ? other.qp : of.qp, &event);
		ibv_ack_async_event(&event);
	}
	OK(ibv_destroy_qp(of.qp));
	OK(ibv_destroy_qp(other.qp));
	end_rest(&of);
	end_rest(&other);
	/* The one that is left goes on. */
	OK(ibv_close_device(second));
	of = make_source(first);
	fail(of.qp);
	expect_last_wqe(first, of.qp, &event);
	ibv_ack_async_event(&event);
	OK(ibv_destroy_qp(of.qp));
	end_rest(&of);
	OK(ibv_close_device(first));
	while (threads() > 1)
		usleep(1000);
}

/* An event that nobody fetched is gone with its object, though a call on another context took it from the device. */
static void unfetched(void)
{
	struct ibv_context *first = open_first(), *second = open_first();
	do_not_block(first->async_fd);
	do_not_block(second->async_fd);
	struct source of = make_source(second);
	fail(of.qp);
	no_event(first);
	OK(ibv_destroy_qp(of.qp));
	no_event(second);
	IS(readable(second->async_fd, 0), 0);
	end_rest(&of);
	OK(ibv_close_device(second));
	OK(ibv_close_device(first));
}

/* One completion event for each call: of a message to itself that nobody receives, which ends with an error. */
static void complete(struct source *of)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	OK(ibv_req_notify_cq(of->cq, 0));
	OK(ibv_post_send(of->qp, &wr, &bad));
	IS(completion(of->cq).status, IBV_WC_WR_FLUSH_ERR);
}

static void fetch(struct source *of)
{
	struct ibv_cq *cq = NULL;
	void *context;
	OK(ibv_get_cq_event(of->channel, &cq, &context));
	IS(cq == of->cq, 1);
}

static void *destroy_cq(void *cq)
{
	OK(ibv_destroy_cq(cq));
	return NULL;
}

/* While a thread destroys a completion queue and waits for an acknowledgement, another one asks for events: those of the queue are gone,
 * and the destroyer does not wait for them. */
static void ending_cq(void)
{
	struct source of = make_source(open_first());
	fail(of.qp);
	complete(&of);
	fetch(&of);
	complete(&of);
	OK(ibv_destroy_qp(of.qp));
	pthread_t thread;
	OK(pthread_create(&thread, NULL, destroy_cq, of.cq));
	usleep(20000); /* while it waits, or before: both are right */
	do_not_block(of.channel->fd);
	struct ibv_cq *cq;
	void *context;
	int got = ibv_get_cq_event(of.channel, &cq, &context);
	ibv_ack_cq_events(of.cq, got == 0 ? 2 : 1);
	OK(pthread_join(thread, NULL));
	MINUS_ONE(ibv_get_cq_event(of.channel, &cq, &context), EAGAIN);
	of.cq = NULL;
	end_rest(&of);
	OK(ibv_close_device(of.context));
}

/* A completion queue that is in use is refused at once, whatever is owed, and loses no event. */
static void busy_cq(void)
{
	struct source of = make_source(open_first());
	fail(of.qp);
	complete(&of);
	fetch(&of);
	complete(&of);
	REFUSED(ibv_destroy_cq(of.cq), EBUSY);
	fetch(&of);
	ibv_ack_cq_events(of.cq, 2);
	IS(of.cq->comp_events_completed, 2);
	OK(ibv_destroy_qp(of.qp));
	end_rest(&of);
	OK(ibv_close_device(of.context));
}

/* A closed context leaves objects behind: their events are nobody's, and other contexts go on. */
static void closed_context(void)
{
	struct ibv_context *first = open_first(), *second = open_first();
	do_not_block(first->async_fd);
	struct source left = make_source(second), of = make_source(first);
	fail(left.qp);
	fail(of.qp);
	OK(ibv_close_device(second));
	struct ibv_async_event event;
	expect_last_wqe(first, of.qp, &event);
	ibv_ack_async_event(&event);
	no_event(first);
	OK(ibv_destroy_qp(of.qp));
	OK(ibv_destroy_qp(left.qp));
	end_rest(&left);
	end_rest(&of);
	OK(ibv_close_device(first));
}

static void *destroy_qp(void *qp)
{
	OK(ibv_destroy_qp(qp));
	return NULL;
}

/* Each handle of an XRC target is told, and waits for its own acknowledgement. */
static void targets(void)
{
	struct ibv_context *context[2] = { open_first(), open_first() };
	struct ibv_xrcd_init_attr xrcd_init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .oflags = O_CREAT };
	xrcd_init.fd = open(".", O_RDONLY);
	struct ibv_xrcd *xrcd[2];
	for (int i = 0; i < 2; i++) {
		xrcd[i] = MUST(ibv_open_xrcd(context[i], &xrcd_init));
		do_not_block(context[i]->async_fd);
	}
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd[0] };
	struct ibv_qp *made = MUST(ibv_create_qp_ex(context[0], &init));
	struct ibv_qp_open_attr open_attr = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
					      .qp_type = IBV_QPT_XRC_RECV, .qp_num = made->qp_num, .xrcd = xrcd[1] };
	struct ibv_qp *opened = MUST(ibv_open_qp(context[1], &open_attr)), *more = MUST(ibv_open_qp(context[0], &open_attr));
	OK(ibv_destroy_qp(more)); /* and the others are still told */
	connect_rc(made, made->qp_num, own_gid(context[0]));
	fail(made);
	struct ibv_async_event events[2];
	expect_last_wqe(context[0], made, &events[0]);
	expect_last_wqe(context[1], opened, &events[1]);
	no_event(context[0]);
	for (int i = 0; i < 2; i++) {
		pthread_t thread;
		OK(pthread_create(&thread, NULL, destroy_qp, i ? opened : made));
		usleep(2000);
		ibv_ack_async_event(&events[i]);
		OK(pthread_join(thread, NULL));
	}
	for (int i = 0; i < 2; i++) {
		OK(ibv_close_xrcd(xrcd[i]));
		OK(ibv_close_device(context[i]));
	}
}

static int ended(pid_t child)
{
	int status;
	if (waitpid(child, &status, 0) != child)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

/* The descriptor of a context tells of an event before anything else has asked for one. */
static void tells(struct ibv_context *context)
{
	struct source of = make_source(context);
	fail(of.qp);
	struct ibv_async_event event;
	expect_last_wqe(context, of.qp, &event);
	ibv_ack_async_event(&event);
	OK(ibv_destroy_qp(of.qp));
	end_rest(&of);
}

/* A context is a forked child's too; and one that the child closes at once takes nothing from the next one. */
static void forked(int closes)
{
	struct ibv_context *context = open_first();
	pid_t child = fork();
	if (child == 0 && closes) {
		OK(ibv_close_device(context));
		context = open_first();
	}
	tells(context);
	OK(ibv_close_device(context));
	if (child == 0)
		exit(failures != 0);
	IS(ended(child), 0);
}

static int descriptors(void)
{
	int count = 0;
	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) != -1;
	return count;
}

/* Wherever a context fails to open for want of descriptors, it leaves none. */
static void no_descriptors(void)
{
	struct ibv_device **list = MUST(ibv_get_device_list(NULL));
	struct ibv_context *context = NULL;
	struct rlimit all, few;
	getrlimit(RLIMIT_NOFILE, &all);
	few = all;
	OK(ibv_close_device(open_first())); /* what the process keeps, it has from here on */
	int before = descriptors();
	for (few.rlim_cur = before; !context && few.rlim_cur < 1024; few.rlim_cur++) {
		setrlimit(RLIMIT_NOFILE, &few);
		context = ibv_open_device(list[0]);
		setrlimit(RLIMIT_NOFILE, &all);
		if (!context)
			IS(descriptors(), before);
	}
	OK(ibv_close_device(MUST(context)));
	IS(descriptors(), before);
	ibv_free_device_list(list);
}

/* Lines in a file that begin with this library's name. */
static int lines_of_ours(int fd)
{
	char text[4096];
	int count = 0;
	ssize_t len = pread(fd, text, sizeof text - 1, 0);
	text[len < 0 ? 0 : len] = 0;
	for (char *at = text; (at = strstr(at, "roce: ")); at++)
		count++;
	IS(count == 0 || strstr(text, "filter of system calls") != NULL, 1);
	return count;
}

/* A filter of system calls that refuses eventfd2: the error number is the system's, and a line says why, once. */
static void refused_events(int number)
{
	int said = fileno(MUST(tmpfile()));
	refuse_call(SYS_eventfd2, (unsigned int)number);
	int before = dup(2);
	struct ibv_device **list = MUST(ibv_get_device_list(NULL));
	dup2(said, 2);
	struct rdma_event_channel *channel = NULL;
	struct ibv_context *context = NULL;
	int first = 0, second = 0;
	if (!(channel = rdma_create_event_channel()))
		first = errno;
	int lines = lines_of_ours(said);
	if (!(context = ibv_open_device(list[0])))
		second = errno;
	int all = lines_of_ours(said);
	dup2(before, 2);
	IS(channel || context, 0);
	IS(first, number);
	IS(second, number);
	IS(lines, 1);
	IS(all, 1);
	ibv_free_device_list(list);
}

int main(int argc, char **argv)
{
	const char *story = argc > 1 ? argv[1] : "";
	if (!strcmp(story, "whose"))
		whose();
	else if (!strcmp(story, "unfetched"))
		unfetched();
	else if (!strcmp(story, "ending-cq"))
		ending_cq();
	else if (!strcmp(story, "busy-cq"))
		busy_cq();
	else if (!strcmp(story, "closed-context"))
		closed_context();
	else if (!strcmp(story, "targets"))
		targets();
	else if (!strcmp(story, "forked"))
		forked(0);
	else if (!strcmp(story, "forked-closed"))
		forked(1);
	else if (!strcmp(story, "refused-events"))
		refused_events(EPERM);
	else if (!strcmp(story, "unknown-events"))
		refused_events(ENOSYS);
	else if (!strcmp(story, "no-descriptors"))
		no_descriptors();
	else
		return 3;
	return failures != 0;
}
