/* Programs that load the library themselves, by version as NCCL does, and unload it while the device is open. */
#define _GNU_SOURCE
#define LOADS_ITSELF
#include <dlfcn.h>

#include "check.h"

#define LOAD(library, name, version) (MUST((__typeof__(name) *)dlvsym(library, #name, version)))

/* The distribution's library beside this one: it finds no device, and both live. Symbols of the first one are those of both. */
static int beside(void)
{
	const char *places[] = { "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib" };
	void *ours = MUST(dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL)), *other = NULL;
	for (int i = 0; i < 4 && !other; i++) {
		char path[256];
		snprintf(path, sizeof path, "%s/libibverbs.so.1", places[i]);
		other = dlopen(path, RTLD_NOW);
	}
	if (!other) {
		printf("SKIPPED the distribution's library beside ours: it is not installed\n");
		return 0;
	}
	void *libraries[] = { other, ours, other };
	for (int i = 0; i < 3; i++) {
		int count = -1;
		struct ibv_device **list = LOAD(libraries[i], ibv_get_device_list, "IBVERBS_1.1")(&count);
		if (libraries[i] == ours)
			IS(count, 1);
		if (list)
			LOAD(libraries[i], ibv_free_device_list, "IBVERBS_1.1")(list);
	}
	return failures != 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "beside"))
		return beside();
	for (int i = 0; i < 3; i++) {
		void *library = dlopen("libibverbs.so.1", RTLD_NOW);
		if (!library) {
			fprintf(stderr, "%s\n", dlerror());
			return 2;
		}
		struct ibv_device **list = MUST(LOAD(library, ibv_get_device_list, "IBVERBS_1.1")(NULL));
		struct ibv_context *context = MUST(LOAD(library, ibv_open_device, "IBVERBS_1.1")(list[0]));
		struct ibv_pd *pd = MUST(LOAD(library, ibv_alloc_pd, "IBVERBS_1.1")(context));
		static char memory[64];
		struct ibv_mr *mr = MUST(LOAD(library, ibv_reg_mr_iova2, "IBVERBS_1.8")(pd, memory, sizeof memory,
										    (uintptr_t)memory, 0));
		IS(mr->length, sizeof memory);
		/* A queue pair starts the port, and with it threads. */
		struct ibv_cq *cq = MUST(LOAD(library, ibv_create_cq, "IBVERBS_1.1")(context, 4, NULL, NULL, 0));
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
						 .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
		struct ibv_qp *qp = MUST(LOAD(library, ibv_create_qp, "IBVERBS_1.1")(pd, &init));
		IS(qp->state, IBV_QPS_RESET);
		IS(dlvsym(library, "ibv_alloc_pd", "IBVERBS_9.9") == NULL, 1);
		/* By the names without a version it is the same library. */
		const char *names[] = { "libibverbs.so", "librdmacm.so" };
		for (int n = 0; n < 2; n++) {
			void *same = dlopen(names[n], RTLD_NOW);
			IS(same && dlsym(same, "ibv_alloc_pd") == dlsym(library, "ibv_alloc_pd"), 1);
			dlclose(same);
		}
		void *cm = dlopen("librdmacm.so.1", RTLD_NOW);
		IS(cm != NULL && dlvsym(cm, "rdma_create_id", "RDMACM_1.0") != NULL, 1);
		dlclose(cm);
		dlclose(library); /* with everything open: its threads go on */
		usleep(2000);
	}
	return failures != 0;
}
