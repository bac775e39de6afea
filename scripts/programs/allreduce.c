/* Two ranks of MPI add up vectors of many sizes, and check every sum; then each sends its number to the next. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/* The element of a rank's vector; sums of them are exact. */
static double element(int rank, int round, int at)
{
	return (rank + 1) * 1000003.0 + round * 1009.0 + at % 997;
}

int main(int argc, char **argv)
{
	int rank, ranks, wrong = 0, rounds = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks < 2) {
		fprintf(stderr, "run it with two ranks or more: mpirun -np 2\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	const int most = 1 << 20;
	double *mine = calloc(most, sizeof *mine), *sum = calloc(most, sizeof *sum);
	if (!mine || !sum)
		MPI_Abort(MPI_COMM_WORLD, 3);
	for (int count = 1; count <= most; count *= 4) {
		for (int again = 0; again < 5; again++, rounds++) {
			for (int i = 0; i < count; i++) {
				mine[i] = element(rank, rounds, i);
				sum[i] = -1;
			}
			MPI_Allreduce(mine, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
			for (int i = 0; i < count; i++) {
				double wanted = 0;
				for (int of = 0; of < ranks; of++)
					wanted += element(of, rounds, i);
				if (sum[i] != wanted && wrong++ < 5)
					fprintf(stderr, "rank %d: element %d of %d in round %d is %.0f, not %.0f\n", rank, i, count,
						rounds, sum[i], wanted);
			}
		}
	}
	/* Each rank sends its number on, many messages under way at once. */
	enum { MESSAGES = 64 };
	MPI_Request requests[2 * MESSAGES];
	int got[MESSAGES], left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
	for (int i = 0; i < MESSAGES; i++) {
		MPI_Irecv(&got[i], 1, MPI_INT, left, i, MPI_COMM_WORLD, &requests[i]);
		MPI_Isend(&rank, 1, MPI_INT, right, i, MPI_COMM_WORLD, &requests[MESSAGES + i]);
	}
	MPI_Waitall(2 * MESSAGES, requests, MPI_STATUSES_IGNORE);
	for (int i = 0; i < MESSAGES; i++)
		wrong += got[i] != left;
	int all;
	MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks, %d rounds, %d wrong\n", ranks, rounds, all);
	free(mine);
	free(sum);
	MPI_Finalize();
	return wrong != 0;
}
