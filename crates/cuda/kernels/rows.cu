// What is done to single rows: norms, rotation, activation functions, gathers, expert choice.

constexpr int NORM_THREADS = 512;
// Elements that a thread holds in registers.
constexpr int HELD = 8;

// The elements i, i + NORM_THREADS, ... of a row's beginning, all loads in flight together.
__device__ __forceinline__ void hold(const float* x, int cols, float (&held)[HELD]) {
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int i = threadIdx.x + k * NORM_THREADS;
        held[k] = i < cols ? x[i] : 0.0f;
    }
}

// The same of a weight, which no kernel writes; a missing one is 1.
__device__ __forceinline__ void hold_weight(const float* weight, int cols, float (&held)[HELD]) {
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int i = threadIdx.x + k * NORM_THREADS;
        held[k] = weight && i < cols ? __ldg(weight + i) : 1.0f;
    }
}

// 1 / sqrt(mean(x^2) + eps) over a block of NORM_THREADS threads that hold the row's beginning.
__device__ __forceinline__ float inverse_rms(const float* x, const float (&held)[HELD], int cols, float eps, float* scratch) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++) sum = fmaf(held[k], held[k], sum);
    for (int i = threadIdx.x + HELD * NORM_THREADS; i < cols; i += NORM_THREADS) sum = fmaf(x[i], x[i], sum);
    return 1.0f / sqrtf(block_sum<NORM_THREADS>(sum, scratch) / float(cols) + eps);
}

// out = x * inverse_rms(x) * weight; one block a row. A missing weight is 1.
extern "C" __global__ void __launch_bounds__(NORM_THREADS)
rms_norm(const float* x, const float* weight, float eps, int cols, float* out) {
    __shared__ float scratch[NORM_THREADS / WARP];
    float held[HELD], gain[HELD];
    hold_weight(weight, cols, gain);
    wait_for_previous();
    x += size_t(blockIdx.x) * cols;
    out += size_t(blockIdx.x) * cols;
    hold(x, cols, held);
    const float factor = inverse_rms(x, held, cols, eps, scratch);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int i = threadIdx.x + k * NORM_THREADS;
        if (i < cols) out[i] = held[k] * factor * gain[k];
    }
    for (int i = threadIdx.x + HELD * NORM_THREADS; i < cols; i += NORM_THREADS) {
        out[i] = x[i] * factor * (weight ? weight[i] : 1.0f);
    }
}

// x = (x + norm(y)) * scale; one block a row. `scale` has n_scales elements: none, one, or one a column.
extern "C" __global__ void __launch_bounds__(NORM_THREADS)
add_norm(float* x, const float* y, const float* weight, float eps, const float* scale, int n_scales, int cols) {
    __shared__ float scratch[NORM_THREADS / WARP];
    float held[HELD], base[HELD], gain[HELD];
    hold_weight(weight, cols, gain);
    wait_for_previous();
    x += size_t(blockIdx.x) * cols;
    y += size_t(blockIdx.x) * cols;
    hold(y, cols, held);
    hold(x, cols, base);
    const float factor = inverse_rms(y, held, cols, eps, scratch);
    const auto add = [&](float x, float y, float gain, int i) {
        const float sum = x + y * factor * gain;
        return sum * (n_scales == 0 ? 1.0f : __ldg(scale + (n_scales == 1 ? 0 : i)));
    };
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int i = threadIdx.x + k * NORM_THREADS;
        if (i < cols) x[i] = add(base[k], held[k], gain[k], i);
    }
    for (int i = threadIdx.x + HELD * NORM_THREADS; i < cols; i += NORM_THREADS) x[i] = add(x[i], y[i], weight ? weight[i] : 1.0f, i);
}

// Cosines, then sines, of position * frequency; one block a row. The angle is rounded to float as in the reference.
extern "C" __global__ void rope_table(const u32* positions, const float* frequencies, int half, float* out) {
    wait_for_previous();
    const float position = float(positions[blockIdx.x]);
    out += size_t(blockIdx.x) * 2 * half;
    EACH(i, half) {
        double sine, cosine;
        sincos(double(position * frequencies[i]), &sine, &cosine);
        out[i] = float(cosine);
        out[half + i] = float(sine);
    }
}

constexpr int HEAD_THREADS = 64;
constexpr int MAX_HEAD = 512;

enum ValueSource { NONE, PROJECTED, PROJECTED_NORMED, KEY_NORMED };

__device__ __forceinline__ float head_factor(const float* head, int dim, float eps, float* scratch) {
    float sum = 0.0f;
    EACH(i, dim) sum = fmaf(head[i], head[i], sum);
    return 1.0f / sqrtf(block_sum<HEAD_THREADS>(sum, scratch) / float(dim) + eps);
}

// Norm and rotation of one head, in place.
__device__ __forceinline__ void norm_and_rotate(float* head, int dim, const float* weight, float factor, const float* table) {
    const int half = dim / 2;
    EACH(i, half) {
        const float a = head[i] * (factor * weight[i]), b = head[half + i] * (factor * weight[half + i]);
        const float cosine = table[i], sine = table[half + i];
        head[i] = a * cosine - b * sine;
        head[half + i] = b * cosine + a * sine;
    }
}

// Norms and rotation of the heads of a row; one block a head (x: query heads, then key/value heads) and row (y).
extern "C" __global__ void __launch_bounds__(HEAD_THREADS)
head_norm_rope(float* qkv, int heads, int kv_heads, int dim, const float* q_norm, const float* k_norm, int source,
               const float* tables, float eps) {
    wait_for_previous();
    __shared__ float scratch[HEAD_THREADS / WARP];
    float* row = qkv + size_t(blockIdx.y) * (heads + 2 * kv_heads) * dim;
    const float* table = tables + size_t(blockIdx.y) * dim;
    const int head = blockIdx.x;
    float* x = row + head * dim;
    const float factor = head_factor(x, dim, eps, scratch);
    if (head < heads) {
        norm_and_rotate(x, dim, q_norm, factor, table);
        return;
    }
    float* value = x + kv_heads * dim;
    if (source == PROJECTED_NORMED) {
        const float value_factor = head_factor(value, dim, eps, scratch);
        EACH(i, dim) value[i] *= value_factor;
    } else if (source == KEY_NORMED) {
        EACH(i, dim) value[i] = x[i] * factor;
        __syncthreads();
    }
    norm_and_rotate(x, dim, k_norm, factor, table);
}

// out[r, i] = gelu_tanh(gate[r, i]) * up[r, i]; a thread an element.
extern "C" __global__ void gated_activation(const float* gate, int gate_stride, const float* up, int up_stride, int rows,
                                            int cols, float* out) {
    wait_for_previous();
    const size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= size_t(rows) * cols) return;
    const size_t row = at / cols, i = at % cols;
    const float x = gate[row * gate_stride + i];
    const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    out[at] = 0.5f * x * (1.0f + tanhf(inner)) * up[row * up_stride + i];
}

// x = cap * tanh(x / cap); a thread an element.
extern "C" __global__ void softcap(float* x, float cap, u64 len) {
    wait_for_previous();
    const size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < len) x[at] = cap * tanhf(x[at] / cap);
}

// Rows to gather, passed by value.
constexpr int GATHERED = 256;
struct RowIds {
    u32 ids[GATHERED];
};

// out[i, :] = x[ids[i], :]; one block a row.
extern "C" __global__ void gather(const float* x, const __grid_constant__ RowIds rows, int cols, float* out) {
    wait_for_previous();
    const float* from = x + size_t(rows.ids[blockIdx.x]) * cols;
    EACH(i, cols) out[size_t(blockIdx.x) * cols + i] = from[i];
}

// What is largest for the expert that comes first: by its probability, then the lower id; what is not a number comes last.
// Never 0, which marks experts that are taken.
__device__ __forceinline__ u64 rank(float probability, int expert) {
    const u32 order = isnan(probability) ? 0 : __float_as_uint(probability) + 1;
    return u64(order) << 32 | (0xffffffffu - u32(expert));
}

// Softmax over the scores of a row and its top_k; one warp a row. Shared memory: n_experts ranks, then as many floats.
extern "C" __global__ void route(const float* scores, int n_experts, int top_k, const float* expert_scale, u32* experts,
                                 float* weights) {
    extern __shared__ u64 ranks[];
    float* exps = reinterpret_cast<float*>(ranks + n_experts);
    wait_for_previous();
    scores += size_t(blockIdx.x) * n_experts;
    experts += size_t(blockIdx.x) * top_k;
    weights += size_t(blockIdx.x) * top_k;
    float max = -infinity();
    EACH(i, n_experts) max = fmaxf(max, scores[i]);
    max = warp_max(max);
    float total = 0.0f;
    u64 mine = 0;
    EACH(i, n_experts) {
        exps[i] = expf(scores[i] - max);
        ranks[i] = rank(exps[i], i);
        mine = ranks[i] > mine ? ranks[i] : mine;
        total += exps[i];
    }
    total = warp_sum(total);
    __syncwarp();
    float chosen = 0.0f;
    for (int k = 0; k < top_k; k++) {
        u64 best = mine;
        for (int offset = 16; offset > 0; offset /= 2) {
            const u64 other = __shfl_xor_sync(ALL_LANES, best, offset);
            best = other > best ? other : best;
        }
        const int expert = int(0xffffffffu - u32(best));
        const float weight = exps[expert] / total;
        chosen += weight;
        if (mine == best) {
            // This lane had the best: it takes it out and looks for its next.
            ranks[expert] = 0;
            mine = 0;
            EACH(i, n_experts) mine = ranks[i] > mine ? ranks[i] : mine;
            experts[k] = expert;
            weights[k] = weight;
        }
        __syncwarp();
    }
    // The floor under the sum is what the reference implementations divide by.
    const float norm = fmaxf(chosen, 1.0f / 16384.0f);
    EACH(k, top_k) weights[k] = weights[k] / norm * (expert_scale ? expert_scale[experts[k]] : 1.0f);
}

// Groups the choices of a batch by expert in tiles of eight; one block. Shared memory: 2 * n_experts counters. The order
// within an expert's tiles is arbitrary: no result depends on it.
extern "C" __global__ void group_choices(const u32* experts, int n_choices, int n_experts, u32* tile_experts,
                                         int* tile_choices, u32* n_tiles) {
    wait_for_previous();
    extern __shared__ u32 counts[];
    u32* starts = counts + n_experts;
    EACH(e, n_experts) counts[e] = 0;
    __syncthreads();
    EACH(c, n_choices) atomicAdd(&counts[experts[c]], 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 tiles = 0;
        for (int e = 0; e < n_experts; e++) {
            starts[e] = tiles;
            tiles += (counts[e] + 7) / 8;
        }
        *n_tiles = tiles;
    }
    __syncthreads();
    EACH(e, n_experts) {
        const u32 tiles = (counts[e] + 7) / 8;
        for (u32 t = starts[e]; t < starts[e] + tiles; t++) tile_experts[t] = e;
        for (u32 i = 8 * starts[e] + counts[e]; i < 8 * (starts[e] + tiles); i++) tile_choices[i] = -1;
        counts[e] = 0;
    }
    __syncthreads();
    EACH(c, n_choices) {
        const u32 expert = experts[c];
        tile_choices[8 * starts[expert] + atomicAdd(&counts[expert], 1)] = c;
    }
}

// out[r, :] = sum_j weights[r, j] * y[r * top_k + j, :], j ascending; a thread an element.
extern "C" __global__ void combine(const float* y, const float* weights, int top_k, int rows, int cols, float* out) {
    wait_for_previous();
    const size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= size_t(rows) * cols) return;
    const size_t row = at / cols, i = at % cols;
    float sum = 0.0f;
    for (int j = 0; j < top_k; j++) sum = fmaf(weights[row * top_k + j], y[(row * top_k + j) * cols + i], sum);
    out[at] = sum;
}

// Resets a flag.
extern "C" __global__ void clear(u64* flag) {
    wait_for_previous();
    *flag = 0;
}
