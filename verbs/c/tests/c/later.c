/* What a program of a later release has: a call that libraries of today lack, which it makes only if it is there. */
#ifdef LIBRARY
void ibv_later(void);
void ibv_later(void)
{
}
#endif

#ifdef PLUGIN
void ibv_later(void);
int use(int later);
int use(int later)
{
	if (later)
		ibv_later();
	return 7;
}
#endif

#ifdef PROGRAM
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *object = argc > 1 ? dlopen(argv[1], RTLD_LAZY) : NULL;
	if (!object) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	int (*use)(int) = (int (*)(int))dlsym(object, "use");
	return use && use(0) == 7 ? 0 : 2;
}
#endif
