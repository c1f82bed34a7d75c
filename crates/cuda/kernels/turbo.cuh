// The TurboQuant formats of cached keys and values; the reference is `lapidary_backend::kv::turbo`, whose sums and
// roundings these functions follow, so that the bytes are the same.

// Elements of the device's table: signs of the rotation, then the levels of 4 and of 5 bits.
constexpr int MAX_HEAD = 512;
constexpr int LEVELS_4 = MAX_HEAD, LEVELS_5 = LEVELS_4 + 8;

// Formats, by the bits of a code; KEYS and VALUES are chosen with -D.
enum Format { FLOAT = 32, HALF = 16, TQ8 = 8, TQ6 = 6, TQ5 = 5, TQ4 = 4 };

template <int FORMAT>
struct Stored {
    static constexpr bool TURBO = FORMAT < HALF;
    static constexpr bool EVEN = FORMAT == TQ8 || FORMAT == TQ6;
    static constexpr int GROUP_BYTES = 4 * FORMAT;
};

// Where the cached vectors of a pool lie. A block holds, for each layer and head: codes of all keys, codes of all values,
// scales of the keys, scales of the values.
struct Layout {
    u64 head_bytes;
    int block_len;
    int kv_heads;
    int head_dim;
    // Bytes of the codes of a vector, and its scales and offsets.
    int key_bytes;
    int value_bytes;
    int key_scales;
    int value_scales;
    // Elements with one scale, as a power of two, and elements rotated together.
    int block_shift;
    int part_dim;
    float part_scale;

    __device__ __forceinline__ u8* head(u64 block, int layer, int kv_head) const {
        return reinterpret_cast<u8*>(block) + head_bytes * (layer * kv_heads + kv_head);
    }
    __device__ __forceinline__ u8* keys(u8* head, int slot) const { return head + slot * key_bytes; }
    __device__ __forceinline__ u8* values(u8* head, int slot) const {
        return head + block_len * key_bytes + slot * value_bytes;
    }
    __device__ __forceinline__ float* scales_of_keys(u8* head, int slot) const {
        return reinterpret_cast<float*>(head + block_len * (key_bytes + value_bytes)) + slot * key_scales;
    }
    __device__ __forceinline__ float* scales_of_values(u8* head, int slot) const {
        return reinterpret_cast<float*>(head + block_len * (key_bytes + value_bytes)) + block_len * key_scales +
               slot * value_scales;
    }
};

// Sums and differences of elements h apart, h = 1, 2, 4, ...; by all threads of a block, on shared memory.
__device__ __forceinline__ void transform(float* x, const Layout& l) {
    EACH(i, l.head_dim) x[i] *= l.part_scale;
    for (int h = 1; h < l.part_dim; h *= 2) {
        __syncthreads();
        EACH(i, l.head_dim / 2) {
            const int low = i / h * 2 * h + i % h;
            const float a = x[low], b = x[low + h];
            x[low] = a + b;
            x[low + h] = a - b;
        }
    }
    __syncthreads();
}

__device__ __forceinline__ void flip(float* x, const Layout& l, const float* table) {
    EACH(i, l.head_dim) x[i] *= table[i];
}

// Elements e to e + N - 1 of a vector, N = 2 or 8 dividing e.
template <int FORMAT, int N>
__device__ __forceinline__ void load_vector(const u8* codes, const float* scales, int n_blocks, int block_shift,
                                            const float* levels, int e, float (&out)[N]) {
    typedef Stored<FORMAT> S;
    if constexpr (FORMAT == FLOAT) {
        const float2* v = reinterpret_cast<const float2*>(codes + 4 * e);
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const float2 pair = v[i / 2];
            out[i] = pair.x, out[i + 1] = pair.y;
        }
    } else if constexpr (FORMAT == HALF) {
        u32 words[N / 2];
        if constexpr (N == 8) {
            const uint4 v = *reinterpret_cast<const uint4*>(codes + 2 * e);
            words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
        } else {
            words[0] = *reinterpret_cast<const u32*>(codes + 2 * e);
        }
#pragma unroll
        for (int i = 0; i < N; i++) out[i] = half_to_float(u16(words[i / 2] >> (16 * (i % 2))));
    } else {
        const float scale = scales[e >> block_shift];
        const int at = e % 32;
        const u8* group = codes + e / 32 * S::GROUP_BYTES;
        const u8* bytes = group + (FORMAT == TQ8 ? at : at % 16);
        u64 word;
        if constexpr (N == 8) {
            const u32* words = reinterpret_cast<const u32*>(bytes);
            word = words[0] | u64(words[1]) << 32;
        } else {
            word = *reinterpret_cast<const u16*>(bytes);
        }
        if constexpr (S::EVEN) {
            const float offset = scales[n_blocks + (e >> block_shift)];
#pragma unroll
            for (int i = 0; i < N; i++) {
                int code = i8(word >> (8 * i));
                if constexpr (FORMAT == TQ6) {
                    const u32 low = (word >> (8 * i + (at < 16 ? 0 : 4))) & 15;
                    const u32 high = group[16 + (at + i) % 8] >> (2 * ((at + i) / 8)) & 3;
                    code = int(low | high << 4) - 32;
                }
                out[i] = fmaf(float(code), scale, offset);
            }
        } else {
            u32 signs = 0;
            if constexpr (FORMAT == TQ5) signs = group[16 + at / 8] >> (at % 8);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const u32 nibble = (word >> (8 * i + (at < 16 ? 0 : 4))) & 15;
                const bool negative = FORMAT == TQ4 ? nibble > 7 : signs >> i & 1;
                const float level = levels[FORMAT == TQ4 ? nibble & 7 : nibble];
                out[i] = scale * (negative ? -level : level);
            }
        }
    }
}

// Sum over 16 lanes of what each holds, folded in halves; lane 0 gets it. All lanes of the warp take part.
__device__ __forceinline__ float fold(float x) {
    for (int width = 8; width > 0; width /= 2) x += __shfl_down_sync(ALL_LANES, x, width);
    return __shfl_sync(ALL_LANES, x, 0);
}

// sum a b (or sum a) of n elements in sixteen partial sums; by a whole warp, of which the first sixteen lanes work.
__device__ __forceinline__ float lanes_fma(const float* a, const float* b, int n) {
    float sum = 0.0f;
    if (threadIdx.x % WARP < 16) {
        for (int i = threadIdx.x % WARP; i < n; i += 16) sum = fmaf(a[i], b[i], sum);
    }
    return fold(sum);
}
__device__ __forceinline__ float lanes_sum(const float* a, int n) {
    float sum = 0.0f;
    if (threadIdx.x % WARP < 16) {
        for (int i = threadIdx.x % WARP; i < n; i += 16) sum += a[i];
    }
    return fold(sum);
}

// Bytes that the codes of n elements take.
template <int FORMAT>
__device__ __forceinline__ int code_bytes(int n) { return (n + 31) / 32 * Stored<FORMAT>::GROUP_BYTES; }

// A block whose norm is below this is stored as zero.
constexpr float TINY = 1e-10f;

// Codes (as floats, in `codes`) and scale of one block of n rotated elements; by one warp. For level formats a code is the
// index, negative ones minus 1 minus the index. Gives scale and offset before the range factor.
template <int FORMAT>
__device__ __forceinline__ void encode_block(const float* y, int n, float up, const float* levels, float* codes,
                                             float* chosen, float& scale, float& offset) {
    const int lane = threadIdx.x % WARP;
    offset = 0.0f;
    if constexpr (Stored<FORMAT>::EVEN) {
        constexpr float STEPS = (1 << FORMAT) - 1, HALF_RANGE = 1 << (FORMAT - 1);
        float low = infinity(), high = -infinity();
        for (int i = lane; i < n; i += WARP) low = fminf(low, y[i]), high = fmaxf(high, y[i]);
        for (int step = 16; step > 0; step /= 2) {
            low = fminf(low, __shfl_xor_sync(ALL_LANES, low, step));
            high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, step));
        }
        low = low + 0.0f;
        const float inverse = STEPS / (high - low);
        if (!isfinite(inverse)) {
            for (int i = lane; i < n; i += WARP) codes[i] = 0.0f;
            scale = 0.0f, offset = low;
            return;
        }
        for (int i = lane; i < n; i += WARP) {
            codes[i] = fminf(rintf((y[i] - low) * inverse) - HALF_RANGE, HALF_RANGE - 1.0f);
        }
        __syncwarp();
        const float share = 1.0f / float(n);
        const float sum_c = lanes_sum(codes, n), sum_cc = lanes_fma(codes, codes, n);
        const float sum_y = lanes_sum(y, n), sum_cy = lanes_fma(codes, y, n);
        scale = (sum_cy - sum_c * sum_y * share) / (sum_cc - sum_c * sum_c * share);
        offset = (sum_y - scale * sum_c) * share;
    } else {
        constexpr int LEVELS = 1 << (FORMAT - 1);
        const float norm = sqrtf(lanes_fma(y, y, n));
        if (norm * up < TINY) {
            for (int i = lane; i < n; i += WARP) codes[i] = 0.0f;
            scale = 0.0f;
            return;
        }
        const float inverse = sqrtf(float(n)) / norm;
        for (int i = lane; i < n; i += WARP) {
            const float u = y[i] * inverse, magnitude = fabsf(u);
            int index = 0;
            for (int l = 0; l + 1 < LEVELS; l++) index += magnitude > 0.5f * (levels[l] + levels[l + 1]);
            codes[i] = u < 0.0f ? float(-1 - index) : float(index);
            chosen[i] = u < 0.0f ? -levels[index] : levels[index];
        }
        __syncwarp();
        scale = lanes_fma(y, chosen, n) / lanes_fma(chosen, chosen, n);
    }
}

// Byte `at` of the codes of a vector of n elements.
template <int FORMAT>
__device__ __forceinline__ u8 code_byte(const float* codes, int n, int at) {
    constexpr int GROUP_BYTES = Stored<FORMAT>::GROUP_BYTES;
    if constexpr (FORMAT == TQ8) return at < n ? u8(i8(int(codes[at]))) : 0;
    const int group = 32 * (at / GROUP_BYTES), o = at % GROUP_BYTES;
    // What is stored of element i of the group.
    const auto stored = [&](int i) -> u32 {
        if (group + i >= n) return 0;
        const int code = int(codes[group + i]);
        if constexpr (FORMAT == TQ6) return code + 32;
        const u32 index = code < 0 ? -1 - code : code;
        return index | u32(code < 0) << (FORMAT == TQ4 ? 3 : 4);
    };
    if (o < 16) return u8((stored(o) & 15) | (stored(o + 16) & 15) << 4);
    u32 byte = 0;
    if constexpr (FORMAT == TQ6) {
        for (int i = 0; i < 4; i++) byte |= (stored(o - 16 + 8 * i) >> 4) << (2 * i);
    } else {
        for (int i = 0; i < 8; i++) byte |= (stored(8 * (o - 16) + i) >> 4) << i;
    }
    return u8(byte);
}
