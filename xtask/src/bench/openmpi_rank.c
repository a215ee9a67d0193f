/* One rank of `cargo xtask bench --against openmpi`: the same calls in MPI. The arguments are the measurements, and the
 * lines printed are those of collectives/examples/bench_rank/measure.rs. An MPI error ends the program (MPI's default). */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define ENOUGH 0.3 /* how long a measurement lasts, about, in seconds */
#define MANY 1e4

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static long long peak_bytes(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
#ifdef __APPLE__
    return u.ru_maxrss;
#else
    return u.ru_maxrss * 1024LL;
#endif
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Zeroed memory whose every page is there. */
static char *array(size_t bytes) {
    char *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

static int rank, size;

static void call(const char *operation, char *data, char *gathered, size_t bytes) {
    int peer = rank ^ 1;
    if (!strcmp(operation, "all_gather")) {
        MPI_Allgather(data, (int)bytes, MPI_BYTE, gathered, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
    } else if (strcmp(operation, "send_recv")) {
        MPI_Allreduce(MPI_IN_PLACE, data, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (peer < size && rank < peer) {
        MPI_Send(data, (int)bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
        MPI_Recv(data, (int)bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (peer < size) {
        MPI_Recv(data, (int)bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(data, (int)bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
    }
}

/* The median time of `calls` calls, each begun `late` milliseconds late. */
static double median(const char *operation, char *data, char *gathered, size_t bytes, int calls, long late) {
    double *times = (double *)array(calls * sizeof(double));
    for (int c = 0; c < calls; c++) {
        struct timespec nap = {late / 1000, late % 1000 * 1000000L};
        if (late) nanosleep(&nap, NULL);
        double begin = seconds();
        call(operation, data, gathered, bytes);
        times[c] = seconds() - begin;
    }
    qsort(times, calls, sizeof(double), ascending);
    double middle = times[calls / 2];
    free(times);
    return middle;
}

/* How many calls to make when one takes about `usual` seconds here: the same on every rank. */
static int agree(double usual, int most) {
    double mine = usual > 0 ? (double)(long)(ENOUGH / usual) : MANY, least;
    mine = mine < 3 ? 3 : mine > MANY ? MANY : mine;
    MPI_Allreduce(&mine, &least, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    return least > most ? most : (int)least;
}

int main(int argc, char **argv) {
    long long start_peak = peak_bytes();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 1; i < argc; i++) {
        char operation[32];
        size_t bytes;
        int warm_ups, calls;
        if (sscanf(argv[i], "%31[a-z_]:%zu:%d:%d", operation, &bytes, &warm_ups, &calls) != 4 || warm_ups < 1 || calls < 1) {
            fprintf(stderr, "%s: no measurement\n", argv[i]);
            return 1;
        }
        int wait = !strcmp(operation, "wait"), late = wait && rank + 1 == size;
        size_t length = wait ? 8 : bytes;
        char *data = array(length);
        char *gathered = array(strcmp(operation, "all_gather") ? 0 : length * size);
        calls = agree(median(operation, data, gathered, length, warm_ups, 0), calls);
        double before = cpu_seconds();
        double middle = median(operation, data, gathered, length, calls, late ? (long)bytes : 0);
        double cpu = (cpu_seconds() - before) / calls;
        double half = strcmp(operation, "send_recv") ? 1 : 2;
        printf("@row %d %d %.3f %.3f\n", rank, i - 1, middle * 1e6 / half, cpu * 1e6 / half);
        fflush(stdout);
        free(gathered);
        free(data);
    }
    printf("@usage %d %.6f %lld %lld\n", rank, cpu_seconds(), peak_bytes(), start_peak);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
