/* Checks and times the kernel; writes one JSON object.
 *
 *     driver <size> <M> <N> <K> <samples> <seconds> <warm-up seconds> [folders of energy counters]
 *
 * Size is that of the square matrices, M, N and K are the padded sizes. The same for every point: it is compiled without
 * the point's flags, so that nothing that is tuned touches the reference or the clock.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define MOST_SAMPLES 10000
#define MOST_COUNTERS 64
#define FEWEST_QUIET 10 /* samples: where there are fewer, it goes on for PATIENCE times the seconds allowed */
#define PATIENCE 5
#define SHORTEST_SAMPLE 1e-3 /* seconds: shorter ones would measure the clock */

void kernel(const double *restrict a, const double *restrict b, double *restrict c);

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* How often this process had to leave its processor to another one. */
static long preemptions(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_nivcsw;
}

static double *matrix(size_t rows, size_t columns)
{
    size_t bytes = (rows * columns * sizeof(double) + 63) / 64 * 64;
    double *found = aligned_alloc(64, bytes);
    if (!found) {
        fprintf(stderr, "no memory for a matrix of %zu bytes\n", bytes);
        exit(2);
    }
    memset(found, 0, bytes);
    return found;
}

/* Numbers in [-1, 1) from a linear congruential generator: the same on every machine. */
static void fill(double *to, size_t size, size_t columns, unsigned long long state)
{
    for (size_t i = 0; i < size; i++)
        for (size_t j = 0; j < size; j++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            to[i * columns + j] = (double)(state >> 11) / (double)(1ull << 52) - 1.0;
        }
}

static double read_number(const char *folder, const char *name)
{
    char path[4096];
    double value = NAN;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%lf", &value) != 1)
            value = NAN;
        fclose(file);
    }
    return value;
}

/* Largest difference between what a call makes of zeros and the reference, in units of size; where it is, into `at`. */
static double difference(const double *a, const double *b, double *c, const double *wanted, size_t size, size_t rows,
                         size_t columns, size_t at[2])
{
    double largest = 0;
    memset(c, 0, rows * columns * sizeof(double));
    kernel(a, b, c);
    for (size_t i = 0; i < size; i++)
        for (size_t j = 0; j < size; j++) {
            double one = fabs(c[i * columns + j] - wanted[i * size + j]) / (double)size;
            if (!(one <= largest) && !isnan(largest)) { /* a NaN is larger than all, and stays */
                largest = one, at[0] = i, at[1] = j;
            }
        }
    return largest;
}

int main(int count, char **argument)
{
    if (count < 8 || count - 8 > MOST_COUNTERS)
        return 2;
    size_t size = strtoul(argument[1], 0, 10), m = strtoul(argument[2], 0, 10), n = strtoul(argument[3], 0, 10),
           k = strtoul(argument[4], 0, 10), samples = strtoul(argument[5], 0, 10);
    double limit = atof(argument[6]), warm_up = atof(argument[7]);
    if (samples > MOST_SAMPLES)
        return 2;
    double *a = matrix(m, k), *b = matrix(k, n), *c = matrix(m, n), *wanted = matrix(size, size);
    fill(a, size, k, 1), fill(b, size, n, 2);
    for (size_t i = 0; i < size; i++)
        for (size_t l = 0; l < size; l++)
            for (size_t j = 0; j < size; j++)
                wanted[i * size + j] += a[i * k + l] * b[l * n + j];

    size_t at[2] = {0, 0};
    double error = difference(a, b, c, wanted, size, m, n, at);

    /* Warm-up: pages, caches, threads, and the clock rate of the processor. */
    double begin = now(), last = begin, shortest = INFINITY;
    do {
        kernel(a, b, c);
        double end = now();
        shortest = fmin(shortest, end - last), last = end;
    } while (last - begin < warm_up);

    size_t together = shortest < SHORTEST_SAMPLE ? (size_t)(SHORTEST_SAMPLE / shortest) + 1 : 1, done = 0, quiet = 0;
    static char disturbed[MOST_SAMPLES];
    static double times[MOST_SAMPLES];
    char **counters = argument + 8;
    size_t found = (size_t)(count - 8);
    double joules[MOST_COUNTERS];
    for (size_t i = 0; i < found; i++)
        joules[i] = read_number(counters[i], "energy_uj");
    begin = now();
    do {
        long before = preemptions();
        double start = now();
        for (size_t i = 0; i < together; i++)
            kernel(a, b, c);
        times[done] = (now() - start) / (double)together;
        disturbed[done] = preemptions() != before;
        quiet += !disturbed[done++];
    } while (quiet < samples && done < MOST_SAMPLES &&
             now() - begin < (quiet < FEWEST_QUIET ? PATIENCE * limit : limit));
    double energy = 0;
    for (size_t i = 0; i < found; i++) {
        double used = read_number(counters[i], "energy_uj") - joules[i];
        if (used < 0) /* it has begun anew */
            used += read_number(counters[i], "max_energy_range_uj");
        energy += used * 1e-6;
    }
    size_t later_at[2] = {0, 0};
    double later = difference(a, b, c, wanted, size, m, n, later_at); /* a race of threads shows in some calls only */
    if (!(later <= error) && !isnan(error))
        error = later, at[0] = later_at[0], at[1] = later_at[1];

    printf("{\"error\": %s%.17g%s, \"row\": %zu, \"column\": %zu, \"expected\": %.17g, ", isfinite(error) ? "" : "\"",
           error, isfinite(error) ? "" : "\"", at[0], at[1], wanted[at[0] * size + at[1]]);
    if (found && isfinite(energy))
        printf("\"joules\": %.9g, ", energy / (double)(done * together));
    for (int kind = 0; kind < 2; kind++) {
        printf("%s [", kind ? "], \"disturbed\":" : "\"quiet\":");
        for (size_t i = 0, some = 0; i < done; i++)
            if (disturbed[i] == kind)
                printf("%s%.9g", some++ ? ", " : "", times[i]);
    }
    printf("]}\n");
    return 0;
}
