/* Another libibverbs, and a program that has it: what each of them sees of the device. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int sees(const char *path);

#ifdef LIBRARY
int sees(const char *path)
{
	int fd = open(path, O_RDONLY);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}
#else
#include <dlfcn.h>

int main(int argc, char **argv)
{
	const char *path = "/sys/class/infiniband/roce0/node_type";
	void *library = dlopen(argv[1], RTLD_NOW | (argc > 2 ? RTLD_DEEPBIND : 0));
	int (*library_sees)(const char *) = library ? (int (*)(const char *))dlsym(library, "sees") : NULL;
	if (!library_sees)
		return 100;
	int fd = open(path, O_RDONLY), times = 0;
	for (int i = 0; i < 3; i++)
		times += library_sees(path);
	printf("program %d, library %d\n", fd >= 0, times);
	return 0;
}
#endif
