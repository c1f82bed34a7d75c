// Products with matrices of one GGML type, straight on the stored blocks: FORMAT is the type.
//
// A block of 128 threads computes M matrix rows times R activation rows, a warp's lanes taking pieces of eight columns in
// turn. With up to 1024 columns each warp has matrix rows of its own; with more, the four warps share the columns of the
// same rows. The order of a sum depends on the number of columns alone: a thread adds its pieces in ascending order by
// fused multiply-adds, lanes are added in pairs 16, 8, 4, 2, 1 apart, warps as (0 + 1) + (2 + 3). Neither M nor R changes
// a bit.

constexpr int MAX_MATRICES = 4;

struct Product {
    const u8* weights[MAX_MATRICES];
    const float* x;
    float* out;
    // Mixture of experts: the expert of each choice; tiles of eight choices of one expert, -1 where there is none.
    const u32* experts;
    const u32* tile_experts;
    const int* tile_choices;
    const u32* n_tiles;
    // Bytes from one matrix of a stack to the next.
    u64 stack_bytes[MAX_MATRICES];
    u64 row_bytes;
    int rows[MAX_MATRICES];
    // The first block of each matrix, and the column of `out` where its products begin.
    int first_block[MAX_MATRICES];
    int column[MAX_MATRICES];
    int n_matrices;
    int cols;
    int n_rows;
    int out_stride;
    // Choice / divisor is the input row.
    int divisor;
};

template <typename T, int R, int M, bool EXPERTS>
__device__ __forceinline__ void product(const Product& p) {
    __shared__ float partial[4][M * R];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const bool shared_columns = p.cols > 1024;
    int which = 0;
    while (which + 1 < p.n_matrices && int(blockIdx.x) >= p.first_block[which + 1]) which++;
    const int group = shared_columns ? blockIdx.x - p.first_block[which] : 4 * (blockIdx.x - p.first_block[which]) + warp;
    const int first = group * M, rows = p.rows[which];

    const u8* weights = p.weights[which];
    if constexpr (R == 1 && !EXPERTS) {
        // Weights come into the L2 cache while the kernel before this one ends.
        const u64 begin = first * p.row_bytes, end = min(first + M, rows) * p.row_bytes;
        const int prefetching = shared_columns ? threadIdx.x : lane, step = shared_columns ? 4 * WARP : WARP;
        for (u64 at = begin + 128 * prefetching; at < end; at += 128 * step) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(weights + at));
        }
    }
    wait_for_previous();
    int input[R], output[R];
    if constexpr (EXPERTS) {
        u32 expert;
        if constexpr (R == 1) {
            expert = p.experts[blockIdx.y];
            output[0] = blockIdx.y;
        } else {
            if (blockIdx.y >= *p.n_tiles) return;
            expert = p.tile_experts[blockIdx.y];
            for (int r = 0; r < R; r++) output[r] = p.tile_choices[R * blockIdx.y + r];
        }
        weights += expert * p.stack_bytes[which];
        for (int r = 0; r < R; r++) input[r] = (output[r] < 0 ? output[0] : output[r]) / p.divisor;
    } else {
        for (int r = 0; r < R; r++) {
            const int row = blockIdx.y * R + r;
            output[r] = row < p.n_rows ? row : -1;
            input[r] = output[r] < 0 ? p.n_rows - 1 : output[r];
        }
    }
    if (first >= rows) return;

    float sums[M * R];
    for (int i = 0; i < M * R; i++) sums[i] = 0.0f;
    const int pieces = (p.cols + 7) / 8;
    const int begin = shared_columns ? threadIdx.x : lane, step = shared_columns ? 4 * WARP : WARP;
#pragma unroll(R == 1 ? 4 : 1)
    for (int q = begin; q < pieces; q += step) {
        float x[R][8];
#pragma unroll
        for (int r = 0; r < R; r++) load_piece<T>(p.x + size_t(input[r]) * p.cols, q, p.cols, x[r]);
#pragma unroll
        for (int m = 0; m < M; m++) {
            float w[8];
            decode_piece<T>(weights + size_t(min(first + m, rows - 1)) * p.row_bytes, q, p.cols, w);
#pragma unroll
            for (int r = 0; r < R; r++) {
#pragma unroll
                for (int i = 0; i < 8; i++) sums[m * R + r] = fmaf(w[i], x[r][i], sums[m * R + r]);
            }
        }
    }

    // Lane l now gets the sum of entry l / (32 / (M * R)).
    constexpr int LANES = WARP / (M * R);
    float sum = warp_sums<M * R>(sums);
    const int entry = lane / LANES;
    if (shared_columns) {
        if (lane % LANES == 0) partial[warp][entry] = sum;
        __syncthreads();
        if (warp > 0) return;
        sum = (partial[0][entry] + partial[1][entry]) + (partial[2][entry] + partial[3][entry]);
    }
    const int m = entry / R;
    int row = -1;
#pragma unroll
    for (int r = 0; r < R; r++) row = entry % R == r ? output[r] : row;
    if (lane % LANES == 0 && row >= 0 && first + m < rows) {
        p.out[size_t(row) * p.out_stride + p.column[which] + first + m] = sum;
    }
}

#define PRODUCT(NAME, R, M, EXPERTS)                                                                     \
    extern "C" __global__ void __launch_bounds__(128) NAME(const __grid_constant__ Product p) {          \
        product<FORMAT, R, M, EXPERTS>(p);                                                               \
    }
PRODUCT(linear_1, 1, 2, false)
PRODUCT(linear_2, 2, 2, false)
PRODUCT(linear_4, 4, 4, false)
PRODUCT(linear_8, 8, 4, false)
PRODUCT(experts_1, 1, 2, true)
PRODUCT(experts_8, 8, 4, true)

// out[r, :] = scale * table[tokens[r], :]; one block a row.
extern "C" __global__ void embed(const u8* table, u64 row_bytes, int cols, const u32* tokens, float scale, float* out) {
    wait_for_previous();
    const u8* row = table + tokens[blockIdx.x] * row_bytes;
    out += size_t(blockIdx.x) * cols;
    EACH(q, (cols + 7) / 8) {
        float w[8];
        decode_piece<FORMAT>(row, q, cols, w);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int column = piece_column<FORMAT>(q, i);
            if (column < cols) out[column] = scale * w[i];
        }
    }
}

// out[i] = dot(x, matrix[ids[i], :]) in double precision; one block of 128 threads an id.
extern "C" __global__ void row_dots(const u8* matrix, u64 row_bytes, int cols, const u32* ids, const float* x, float* out) {
    wait_for_previous();
    __shared__ double sums[128];
    const u8* row = matrix + ids[blockIdx.x] * row_bytes;
    double sum = 0.0;
    EACH(q, (cols + 7) / 8) {
        float w[8];
        decode_piece<FORMAT>(row, q, cols, w);
        for (int i = 0; i < 8; i++) {
            const int column = piece_column<FORMAT>(q, i);
            if (column < cols) sum += double(w[i]) * double(x[column]);
        }
    }
    sums[threadIdx.x] = sum;
    for (int width = 64; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = float(sums[0]);
}
