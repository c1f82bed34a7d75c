// Keys and values: storing them, and attention over them. KEYS and VALUES are the formats of a pool.

constexpr int THREADS = 128;

// Stores one head vector; by a block.
template <int FORMAT>
__device__ __forceinline__ void store_vector(const float* from, u8* to, float* scales, const Layout& l,
                                             const float* table, u64 problem, u64* flag) {
    const int n = l.head_dim;
    if constexpr (FORMAT == FLOAT) {
        EACH(i, n) reinterpret_cast<float*>(to)[i] = from[i];
    } else if constexpr (FORMAT == HALF) {
        EACH(i, n) reinterpret_cast<u16*>(to)[i] = float_to_half(from[i]);
    } else {
        __shared__ float y[MAX_HEAD], codes[MAX_HEAD], chosen[MAX_HEAD];
        __shared__ float greatest[THREADS / WARP];
        __shared__ int bad;
        if (threadIdx.x == 0) bad = 0;
        __syncthreads();
        float max = 0.0f;
        EACH(i, n) {
            if (!isfinite(from[i])) bad = 1;
            max = fmaxf(max, fabsf(from[i]));
        }
        max = warp_max(max);
        if (threadIdx.x % WARP == 0) greatest[threadIdx.x / WARP] = max;
        __syncthreads();
        if (bad) {
            if (threadIdx.x == 0) atomicCAS(flag, 0ull, problem);
            return;
        }
        for (int w = 0; w < THREADS / WARP; w++) max = fmaxf(max, greatest[w]);
        // Powers of two that bring the vector near 1 and back.
        const int exponent = clamp(int(__float_as_uint(max) >> 23) - 127, -126, 126);
        const float down = __uint_as_float(u32(127 - exponent) << 23), up = __uint_as_float(u32(127 + exponent) << 23);
        EACH(i, n) y[i] = from[i] * down * table[i];
        __syncthreads();
        transform(y, l);
        const int block = 1 << l.block_shift, n_blocks = n >> l.block_shift;
        for (int b = threadIdx.x / WARP; b < n_blocks; b += THREADS / WARP) {
            float scale, offset;
            const float* levels = table + (FORMAT == TQ4 ? LEVELS_4 : LEVELS_5);
            encode_block<FORMAT>(y + b * block, block, up, levels, codes + b * block, chosen + b * block, scale, offset);
            if (threadIdx.x % WARP == 0) {
                scale *= up, offset *= up;
                scales[b] = scale;
                if (Stored<FORMAT>::EVEN) scales[n_blocks + b] = offset;
                if (!isfinite(scale) || !isfinite(offset)) atomicCAS(flag, 0ull, problem);
            }
        }
        __syncthreads();
        EACH(at, code_bytes<FORMAT>(n)) to[at] = code_byte<FORMAT>(codes, n, at);
    }
}

// Stores keys (z = 0) and values (z = 1) of head x of row y. A vector that is not finite is reported in `flag`:
// bit 63, part in bit 62, layer from bit 32, position.
extern "C" __global__ void __launch_bounds__(THREADS)
kv_store(const float* qkv, int heads, const u32* cells, const u32* positions, const u64* blocks, int layer,
         const __grid_constant__ Layout l, const float* table, u64* flag) {
    wait_for_previous();
    const int head = blockIdx.x, row = blockIdx.y;
    const float* key = qkv + (size_t(row) * (heads + 2 * l.kv_heads) + heads + head) * l.head_dim;
    const u32 cell = cells[row], slot = cell % l.block_len;
    u8* base = l.head(blocks[cell / l.block_len], layer, head);
    const u64 problem = 1ull << 63 | u64(blockIdx.z) << 62 | u64(layer) << 32 | positions[row];
    if (blockIdx.z == 0) {
        store_vector<KEYS>(key, l.keys(base, slot), l.scales_of_keys(base, slot), l, table, problem, flag);
    } else {
        store_vector<VALUES>(key + l.kv_heads * l.head_dim, l.values(base, slot), l.scales_of_values(base, slot), l,
                             table, problem, flag);
    }
}

// Copies a cell in all layers; one block a layer and head (x).
extern "C" __global__ void kv_copy(const u64* blocks, u32 from, u32 to, const __grid_constant__ Layout l) {
    wait_for_previous();
    u8* source = l.head(blocks[from / l.block_len], 0, 0) + blockIdx.x * l.head_bytes;
    u8* target = l.head(blocks[to / l.block_len], 0, 0) + blockIdx.x * l.head_bytes;
    from %= l.block_len, to %= l.block_len;
    EACH(i, l.key_bytes) l.keys(target, to)[i] = l.keys(source, from)[i];
    EACH(i, l.value_bytes) l.values(target, to)[i] = l.values(source, from)[i];
    EACH(i, l.key_scales) l.scales_of_keys(target, to)[i] = l.scales_of_keys(source, from)[i];
    EACH(i, l.value_scales) l.scales_of_values(target, to)[i] = l.scales_of_values(source, from)[i];
}

// Positions are cut where they are multiples of SPAN. A span of a row gives for each head a maximum, a sum and an
// accumulator; `merge` adds the spans in ascending order. What a row gets depends on its own positions alone.
constexpr int SPAN = 32;

// Vectors that a thread reads before it uses the first; what takes long to decode gains little from it.
constexpr int KEYS_IN_FLIGHT = Stored<KEYS>::TURBO ? 1 : 4, VALUES_IN_FLIGHT = Stored<VALUES>::TURBO ? 2 : 8;

struct View {
    u32 table, first_block, shared, tail;
};

struct Attention {
    const float* qkv;
    const u64* blocks;
    const u32* positions;
    const View* views;
    const u32* tables;
    const u32* tails;
    const float* constants;
    float* partial;
    float* out;
    Layout layout;
    float scale;
    int heads;
    // Sliding window; 0: none.
    int window;
    int layer;
    int first_row;
    // Spans that `partial` has room for, for each row and head.
    int max_spans;
};

__device__ __forceinline__ int first_position(const Attention& a, int position) {
    return a.window > 0 && position + 1 > a.window ? position + 1 - a.window : 0;
}

// One span (z) of one row (y) for up to G query heads that share a key/value head (x).
template <int G>
__device__ __forceinline__ void attend(const Attention& a) {
    wait_for_previous();
    const Layout& l = a.layout;
    const int row = a.first_row + blockIdx.y, position = a.positions[row], dim = l.head_dim;
    const int first = first_position(a, position), span = first / SPAN + blockIdx.z;
    if (span * SPAN > position) return;
    const int low = max(first - span * SPAN, 0), high = min(position + 1 - span * SPAN, SPAN);
    const int shared_heads = a.heads / l.kv_heads, chunks = (shared_heads + G - 1) / G;
    const int kv_head = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    const int first_head = kv_head * shared_heads + chunk * G, n_heads = min(G, shared_heads - chunk * G);

    __shared__ float queries[G][MAX_HEAD];
    __shared__ float scores[G][SPAN];
    __shared__ u8* heads[SPAN];
    __shared__ int slots[SPAN];
    const int padded = (dim + 7) / 8 * 8;
    for (int g = 0; g < G; g++) {
        const float* query = a.qkv + (size_t(row) * (a.heads + 2 * l.kv_heads) + first_head + g) * dim;
        EACH(i, padded) queries[g][i] = g < n_heads && i < dim ? query[i] : 0.0f;
    }
    if (threadIdx.x < SPAN && int(threadIdx.x) >= low && int(threadIdx.x) < high) {
        const View view = a.views[row];
        const u32 p = span * SPAN + threadIdx.x;
        u32 cell;
        if (p >= view.shared) {
            cell = a.tails[view.tail + p - view.shared];
        } else {
            cell = a.tables[view.table + p / l.block_len - view.first_block] * l.block_len + p % l.block_len;
        }
        heads[threadIdx.x] = l.head(a.blocks[cell / l.block_len], a.layer, kv_head);
        slots[threadIdx.x] = cell % l.block_len;
    }
    __syncthreads();
    if constexpr (Stored<KEYS>::TURBO) {
        for (int g = 0; g < n_heads; g++) {
            flip(queries[g], l, a.constants);
            __syncthreads();
            transform(queries[g], l);
        }
    }

    // Scores: a warp a position, a lane eight elements at a time.
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const float* key_levels = a.constants + (KEYS == TQ4 ? LEVELS_4 : LEVELS_5);
#pragma unroll(KEYS_IN_FLIGHT)
    for (int p = low + warp; p < high; p += THREADS / WARP) {
        const u8* codes = l.keys(heads[p], slots[p]);
        const float* scales = l.scales_of_keys(heads[p], slots[p]);
        float dots[G];
        for (int g = 0; g < G; g++) dots[g] = 0.0f;
        for (int e = 8 * lane; e < padded; e += 8 * WARP) {
            float key[8];
            load_vector<KEYS, 8>(codes, scales, dim >> l.block_shift, l.block_shift, key_levels, e, key);
#pragma unroll
            for (int g = 0; g < G; g++) {
#pragma unroll
                for (int i = 0; i < 8; i++) dots[g] = fmaf(queries[g][e + i], key[i], dots[g]);
            }
        }
        const float dot = warp_sums<G>(dots);
        if (lane % (WARP / G) == 0) scores[lane / (WARP / G)][p] = a.scale * dot;
    }
    __syncthreads();

    // Maximum and sum of each head: a warp a head, a lane a position.
    for (int g = warp; g < n_heads; g += THREADS / WARP) {
        const bool visible = lane >= low && lane < high;
        const float score = visible ? scores[g][lane] : -infinity(), max = warp_max(score);
        const float weight = visible ? expf(score - max) : 0.0f, sum = warp_sum(weight);
        scores[g][lane] = weight;
        if (lane == 0) {
            float* partial = a.partial + ((size_t(blockIdx.y) * a.heads + first_head + g) * a.max_spans + blockIdx.z) * (dim + 2);
            partial[dim] = max;
            partial[dim + 1] = sum;
        }
    }
    __syncthreads();

    // Weighted values: a thread two elements, positions ascending.
    const float* value_levels = a.constants + (VALUES == TQ4 ? LEVELS_4 : LEVELS_5);
    for (int e = 2 * threadIdx.x; e < dim; e += 2 * THREADS) {
        float mixed[G][2];
        for (int g = 0; g < G; g++) mixed[g][0] = mixed[g][1] = 0.0f;
#pragma unroll(VALUES_IN_FLIGHT)
        for (int p = low; p < high; p++) {
            float value[2];
            load_vector<VALUES, 2>(l.values(heads[p], slots[p]), l.scales_of_values(heads[p], slots[p]), dim >> l.block_shift,
                                   l.block_shift, value_levels, e, value);
#pragma unroll
            for (int g = 0; g < G; g++) {
                mixed[g][0] = fmaf(scores[g][p], value[0], mixed[g][0]);
                mixed[g][1] = fmaf(scores[g][p], value[1], mixed[g][1]);
            }
        }
        for (int g = 0; g < n_heads; g++) {
            float* partial = a.partial + ((size_t(blockIdx.y) * a.heads + first_head + g) * a.max_spans + blockIdx.z) * (dim + 2);
            partial[e] = mixed[g][0];
            partial[e + 1] = mixed[g][1];
        }
    }
}

#define ATTEND(NAME, G) \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ Attention a) { attend<G>(a); }
ATTEND(attend_1, 1)
ATTEND(attend_2, 2)
ATTEND(attend_4, 4)
ATTEND(attend_8, 8)

// Adds the spans of head x of row y.
extern "C" __global__ void __launch_bounds__(THREADS) merge(const __grid_constant__ Attention a) {
    wait_for_previous();
    __shared__ float mixed[MAX_HEAD];
    const int head = blockIdx.x, row = a.first_row + blockIdx.y, position = a.positions[row], dim = a.layout.head_dim;
    const int spans = position / SPAN - first_position(a, position) / SPAN + 1;
    const float* partial = a.partial + (size_t(blockIdx.y) * a.heads + head) * a.max_spans * (dim + 2);
    float max = -infinity();
#pragma unroll 4
    for (int s = 0; s < spans; s++) max = fmaxf(max, partial[s * (dim + 2) + dim]);
    float sum = 0.0f;
    float elements[MAX_HEAD / THREADS] = {};
#pragma unroll 4
    for (int s = 0; s < spans; s++) {
        const float* span = partial + s * (dim + 2);
        const float factor = expf(span[dim] - max);
        sum = fmaf(factor, span[dim + 1], sum);
#pragma unroll
        for (int i = 0; i < MAX_HEAD / THREADS; i++) {
            const int e = threadIdx.x + i * THREADS;
            if (e < dim) elements[i] = fmaf(factor, span[e], elements[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < MAX_HEAD / THREADS; i++) {
        const int e = threadIdx.x + i * THREADS;
        if (e < dim) mixed[e] = elements[i] / sum;
    }
    __syncthreads();
    if constexpr (Stored<VALUES>::TURBO) {
        transform(mixed, a.layout);
        flip(mixed, a.layout, a.constants);
        __syncthreads();
    }
    float* out = a.out + (size_t(row) * a.heads + head) * dim;
    EACH(i, dim) out[i] = mixed[i];
}
