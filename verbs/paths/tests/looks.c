// Looks at a path in every way that the C library has, and says what it finds; ends with the number of what went wrong.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static int wrong;

static void expect(int there, int found, const char *how, const char *path) {
    if (!there == !found)
        return;
    wrong++;
    printf("%s(%s) %s\n", how, path, found ? "found it" : strerror(errno));
}

static int opened(int fd) {
    char c;
    int good = fd >= 0 && read(fd, &c, 1) == 1;
    if (fd >= 0)
        close(fd);
    return good;
}

static void file(const char *path, int there) {
    struct stat s;
    struct stat64 s64;
    struct statx sx;
    char buffer[PATH_MAX], *name;
    FILE *f;
    expect(there, opened(open(path, O_RDONLY)), "open", path);
    expect(there, opened(open64(path, O_RDONLY)), "open64", path);
    expect(there, opened(openat(AT_FDCWD, path, O_RDONLY)), "openat", path);
    expect(there, opened(openat64(AT_FDCWD, path, O_RDONLY)), "openat64", path);
    expect(there, (f = fopen(path, "r")) && fgetc(f) != EOF && !fclose(f), "fopen", path);
    expect(there, (f = fopen64(path, "r")) && fgetc(f) != EOF && !fclose(f), "fopen64", path);
    expect(there, !stat(path, &s) && S_ISREG(s.st_mode), "stat", path);
    expect(there, !stat64(path, &s64) && S_ISREG(s64.st_mode), "stat64", path);
    expect(there, !lstat(path, &s) && S_ISREG(s.st_mode), "lstat", path);
    expect(there, !lstat64(path, &s64) && S_ISREG(s64.st_mode), "lstat64", path);
    expect(there, !fstatat(AT_FDCWD, path, &s, 0) && S_ISREG(s.st_mode), "fstatat", path);
    expect(there, !fstatat64(AT_FDCWD, path, &s64, 0) && S_ISREG(s64.st_mode), "fstatat64", path);
    expect(there, !statx(AT_FDCWD, path, 0, STATX_TYPE, &sx) && S_ISREG(sx.stx_mode), "statx", path);
    expect(there, !access(path, R_OK), "access", path);
    expect(there, !eaccess(path, R_OK), "eaccess", path);
    expect(there, !euidaccess(path, R_OK), "euidaccess", path);
    expect(there, !faccessat(AT_FDCWD, path, R_OK, 0), "faccessat", path);
    expect(there, realpath(path, buffer) != NULL, "realpath", path);
    expect(there, (name = canonicalize_file_name(path)) != NULL, "canonicalize_file_name", path);
    free(name);
    // `ls -l` asks for these: a file that has none is there all the same.
    expect(there, getxattr(path, "user.none", buffer, sizeof buffer) >= 0 || errno != ENOENT, "getxattr", path);
    expect(there, lgetxattr(path, "user.none", buffer, sizeof buffer) >= 0 || errno != ENOENT, "lgetxattr", path);
    expect(there, listxattr(path, buffer, sizeof buffer) >= 0 || errno != ENOENT, "listxattr", path);
    expect(there, llistxattr(path, buffer, sizeof buffer) >= 0 || errno != ENOENT, "llistxattr", path);
}

static void directory(const char *path, int there) {
    struct dirent **list = NULL;
    struct dirent64 **list64 = NULL;
    DIR *d = opendir(path);
    int entries = 0;
    while (d && readdir(d))
        entries++;
    if (d)
        closedir(d);
    expect(there, entries > 2, "opendir", path);
    expect(there, scandir(path, &list, NULL, alphasort) > 2, "scandir", path);
    expect(there, scandir64(path, &list64, NULL, NULL) > 2, "scandir64", path);
    expect(there, !chdir(path), "chdir", path);
}

static void link_to_a_device(const char *path, int there) {
    struct stat s;
    char buffer[PATH_MAX];
    expect(there, !stat(path, &s) && S_ISCHR(s.st_mode), "stat", path);
    expect(there, readlink(path, buffer, sizeof buffer) > 0, "readlink", path);
    expect(there, readlinkat(AT_FDCWD, path, buffer, sizeof buffer) > 0, "readlinkat", path);
}

int main(int argc, char **argv) {
    int there = argc == 2 && !strcmp(argv[1], "there");
    file("/sys/class/infiniband/roce0/node_type", there);
    file("//sys//class/infiniband/roce0/ports/1/gid_attrs/types/0", there);
    file("/sys/class/infiniband_verbs/uverbs0/ibdev", there);
    file("/sys/class/infiniband_mad/abi_version", there);
    // A link of the tree to a directory of the machine.
    directory("/sys/class/infiniband/roce0/device/net/lo", there);
    directory("/sys/class/infiniband", there);
    directory("/sys/class/infiniband_verbs/", there);
    link_to_a_device("/dev/infiniband/uverbs0", there);
    // What only begins alike, and what the tree has by chance, stays what it is.
    file("/sys/class/infiniband_other/node_type", 0);
    file("/sys/class/infiniband/roce1/node_type", 0);
    file("/etc/passwd", 1);
    directory("/dev", 1);
    // What a user sets is what a program gets; what it sets for others is nothing.
    char *value;
    setenv("ROCE_DEFAULT_UCX_A", "default", 1);
    setenv("ROCE_DEFAULT_UCX_B", "default", 1);
    setenv("ROCE_DEFAULT_OTHER", "default", 1);
    setenv("UCX_B", "own", 1);
    // Whether there is a tree or not.
    int preloaded = getenv("LD_PRELOAD") != NULL;
    expect(preloaded, (value = getenv("UCX_A")) && !strcmp(value, "default"), "getenv", "UCX_A");
    expect(1, (value = getenv("UCX_B")) && !strcmp(value, "own"), "getenv", "UCX_B");
    expect(0, getenv("OTHER") || getenv("UCX_C") || getenv("UCX_"), "getenv", "OTHER, UCX_C, UCX_");
    char longest[300] = "UCX_";
    memset(longest + 4, 'x', sizeof longest - 5);
    expect(0, getenv(longest) != NULL, "getenv", "a long name");
    // A mode reaches the C library's function.
    const char *volatile nowhere = NULL;
    char made[] = "/tmp/roce-paths-XXXXXX";
    struct stat s;
    int fd = mkstemp(made);
    umask(0);
    expect(1, fd >= 0 && !unlink(made), "mkstemp", made);
    expect(1, (fd = open(made, O_CREAT | O_EXCL | O_WRONLY, 0640)) >= 0 && !fstat(fd, &s) && (s.st_mode & 0777) == 0640, "open with a mode", made);
    unlink(made);
    expect(1, open(nowhere, O_RDONLY) == -1 && errno == EFAULT, "open of nothing", "(null)");
    return wrong;
}
