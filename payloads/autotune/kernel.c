/* C += A B for row-major matrices of doubles, in tiles: the kernel that is tuned.
 *
 * All sizes are known when it is compiled. A is M x K, B is K x N, C is M x N; M, N and K are multiples of the tiles, for
 * the caller pads the matrices with zeros. ROWS x COLUMNS vectors of VECTOR bytes of C stay in registers while a tile's
 * TILE_K products are added to them.
 */
#include <stddef.h>
#include <string.h>

#define LANES (VECTOR / 8) /* doubles of a vector */
#define TEXT(x) #x
#define UNROLLED(times) _Pragma(TEXT(GCC unroll times))
#define SCHEDULED(kind) _Pragma(TEXT(omp parallel for num_threads(THREADS) schedule(kind)))

#if TILE_I % ROWS || TILE_J % (COLUMNS * LANES)
#error "ROWS must divide TILE_I, and COLUMNS vectors must divide TILE_J"
#endif

_Static_assert(sizeof(double) == 8, "LANES counts doubles of 8 bytes");

/* Aligned like a double: tiles start anywhere in a row. */
typedef double vector __attribute__((vector_size(VECTOR), aligned(sizeof(double)), may_alias));

/* One tile of C; the distances are those between two rows. */
static void multiply_tile(const double *restrict a, size_t a_row, const double *restrict b, size_t b_row,
                          double *restrict c)
{
    for (size_t i = 0; i < TILE_I; i += ROWS)
        for (size_t j = 0; j < TILE_J; j += COLUMNS * LANES) {
            vector sum[ROWS][COLUMNS];
            UNROLLED(16)
            for (int r = 0; r < ROWS; r++)
                UNROLLED(16)
                for (int v = 0; v < COLUMNS; v++)
                    sum[r][v] = *(const vector *)(c + (i + r) * N + j + v * LANES);
            UNROLLED(UNROLL)
            for (size_t k = 0; k < TILE_K; k++)
                UNROLLED(16)
                for (int r = 0; r < ROWS; r++)
                    UNROLLED(16)
                    for (int v = 0; v < COLUMNS; v++)
                        sum[r][v] += a[(i + r) * a_row + k] * *(const vector *)(b + k * b_row + j + v * LANES);
            UNROLLED(16)
            for (int r = 0; r < ROWS; r++)
                UNROLLED(16)
                for (int v = 0; v < COLUMNS; v++)
                    *(vector *)(c + (i + r) * N + j + v * LANES) = sum[r][v];
        }
}

/* Copies a tile so that its rows follow one another: fewer cache lines and pages are touched, for the price of a copy. */
static void pack(double *restrict to, const double *restrict from, size_t from_row, size_t rows, size_t columns)
{
    for (size_t row = 0; row < rows; row++)
        memcpy(to + row * columns, from + row * from_row, columns * sizeof(double));
}

void kernel(const double *restrict a, const double *restrict b, double *restrict c)
{
#if THREADS > 1
    SCHEDULED(SCHEDULE)
#endif
    for (size_t j = 0; j < N; j += TILE_J) {
#if PACK_A
        double a_tile[TILE_I * TILE_K] __attribute__((aligned(64)));
#endif
#if PACK_B
        double b_tile[TILE_K * TILE_J] __attribute__((aligned(64)));
#endif
        for (size_t k = 0; k < K; k += TILE_K) {
#if PACK_B
            pack(b_tile, b + k * N + j, N, TILE_K, TILE_J);
#endif
            for (size_t i = 0; i < M; i += TILE_I) {
                const double *a_from = a + i * K + k, *b_from = b + k * N + j;
                size_t a_row = K, b_row = N;
#if PACK_A
                pack(a_tile, a_from, K, TILE_I, TILE_K);
                a_from = a_tile, a_row = TILE_K;
#endif
#if PACK_B
                b_from = b_tile, b_row = TILE_J;
#endif
                multiply_tile(a_from, a_row, b_from, b_row, c + i * N + j);
            }
        }
    }
}
