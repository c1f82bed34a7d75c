// The GGML block formats, decoded in pieces of eight columns: what one lane takes of a row at a time.
//
// A format says how many columns and bytes a block has, and decodes piece `part` (of COLUMNS / 8) of a block into eight
// weights. Weight i belongs to column `column(part, i)` of the block; columns come in runs of RUN that follow each other.
// The arithmetic is that of the scalar decoders of the gguf crate. A format named FORMAT is chosen with -DFORMAT=...

// Words of blocks whose size leaves them aligned to 1, 2 or 4 bytes.
__device__ __forceinline__ u32 load1(const u8* p) { return p[0] | p[1] << 8 | p[2] << 16 | u32(p[3]) << 24; }
__device__ __forceinline__ u32 load2(const u8* p) {
    const u16* words = reinterpret_cast<const u16*>(p);
    return u32(__ldg(words)) | u32(__ldg(words + 1)) << 16;
}
__device__ __forceinline__ u32 load4(const u8* p) { return __ldg(reinterpret_cast<const u32*>(p)); }
__device__ __forceinline__ float half_at(const u8* p) {
    return half_to_float(__ldg(reinterpret_cast<const u16*>(p)));
}
// Byte i of a word as a number, less BIAS: the byte becomes the low end of a float's mantissa, from which the rest of that
// float and the bias are taken. This is exact, and conversions are slower.
template <int BIAS>
__device__ __forceinline__ float number(u32 word, int i) {
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7540 | i)) - float(0x800000 + BIAS);
}
constexpr u32 LOW_NIBBLES = 0x0f0f0f0fu, LOW_PAIRS = 0x03030303u, LOW_BITS = 0x01010101u;
__device__ __forceinline__ u32 byte_of(u32 word, int i) { return (word >> (8 * i)) & 255; }

// Blocks of 32 columns with 16 bytes of nibbles: byte b holds column b low and column b + 16 high.
struct Nibbles32 {
    static constexpr int COLUMNS = 32, RUN = 4;
    static __device__ __forceinline__ int column(int part, int i) { return 4 * part + i + (i < 4 ? 0 : 12); }
    static __device__ __forceinline__ u32 nibble(u32 word, int i) { return (word >> (8 * (i % 4) + (i < 4 ? 0 : 4))) & 15; }
    // Four nibbles, those of weights 0 to 3 or 4 to 7, a byte each.
    static __device__ __forceinline__ u32 nibbles(u32 word, int half) { return (word >> (4 * half)) & LOW_NIBBLES; }
    // The same, with fifth bits that stand in the order of columns.
    static __device__ __forceinline__ u32 fives(u32 word, u32 high, int part, int half) {
        const u32 bits = high >> column(part, 4 * half);
        return nibbles(word, half) | (bits & 1) << 4 | (bits & 2) << 11 | (bits & 4) << 18 | (bits & 8) << 25;
    }
};

struct Q4_0 : Nibbles32 {
    static constexpr int BYTES = 18;
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const float d = half_at(b);
        const u32 q = load2(b + 2 + 4 * part);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = d * number<8>(nibbles(q, i / 4), i % 4);
    }
};

struct Q4_1 : Nibbles32 {
    static constexpr int BYTES = 20;
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const float d = half_at(b), m = half_at(b + 2);
        const u32 q = load4(b + 4 + 4 * part);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = fmaf(d, number<0>(nibbles(q, i / 4), i % 4), m);
    }
};

struct Q5_0 : Nibbles32 {
    static constexpr int BYTES = 22;
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const float d = half_at(b);
        const u32 high = load2(b + 2), q = load2(b + 6 + 4 * part);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = d * number<16>(fives(q, high, part, i / 4), i % 4);
    }
};

struct Q5_1 : Nibbles32 {
    static constexpr int BYTES = 24;
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const float d = half_at(b), m = half_at(b + 2);
        const u32 high = load4(b + 4), q = load4(b + 8 + 4 * part);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = fmaf(d, number<0>(fives(q, high, part, i / 4), i % 4), m);
    }
};

struct Q8_0 {
    static constexpr int COLUMNS = 32, RUN = 8, BYTES = 34;
    static __device__ __forceinline__ int column(int part, int i) { return 8 * part + i; }
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const float d = half_at(b);
        // Signed bytes, as unsigned ones above -128.
        const u32 q[2] = {load2(b + 2 + 8 * part) ^ 0x80808080u, load2(b + 6 + 8 * part) ^ 0x80808080u};
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = d * number<128>(q[i / 4], i % 4);
    }
};

// The values of IQ4 codes, four a word.
__device__ __forceinline__ float iq4_value(u32 code) {
    constexpr i8 VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const u64 low = u64(u8(VALUES[0])) | u64(u8(VALUES[1])) << 8 | u64(u8(VALUES[2])) << 16 | u64(u8(VALUES[3])) << 24 |
                    u64(u8(VALUES[4])) << 32 | u64(u8(VALUES[5])) << 40 | u64(u8(VALUES[6])) << 48 |
                    u64(u8(VALUES[7])) << 56;
    const u64 high = u64(u8(VALUES[8])) | u64(u8(VALUES[9])) << 8 | u64(u8(VALUES[10])) << 16 |
                     u64(u8(VALUES[11])) << 24 | u64(u8(VALUES[12])) << 32 | u64(u8(VALUES[13])) << 40 |
                     u64(u8(VALUES[14])) << 48 | u64(u8(VALUES[15])) << 56;
    return float(int(i8((code < 8 ? low : high) >> (8 * (code % 8)))));
}

struct IQ4_NL : Nibbles32 {
    static constexpr int BYTES = 18;
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const float d = half_at(b);
        const u32 q = load2(b + 2 + 4 * part);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = d * iq4_value(nibble(q, i));
    }
};

struct MXFP4 : Nibbles32 {
    static constexpr int BYTES = 17;
    // Twice the value of an E2M1 code: 0 1 2 3 4 6 8 12, then the negatives.
    static __device__ __forceinline__ float value(u32 code) {
        const int magnitude = int((0x0c080604'03020100ull >> (8 * (code & 7))) & 255);
        return float(code < 8 ? magnitude : -magnitude);
    }
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const u32 e = b[0];
        const float d = __uint_as_float(e == 0 ? 0x00200000u : e == 1 ? 0x00400000u : (e - 1) << 23);
        const u32 q = load1(b + 1 + 4 * part);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = d * value(nibble(q, i));
    }
};

// Superblocks of 256 columns whose 128 bytes of nibbles hold pairs of groups of 32: low the first, high the second.
struct Nibbles256 {
    static constexpr int COLUMNS = 256, RUN = 4;
    static __device__ __forceinline__ int column(int part, int i) {
        return 64 * (part / 8) + 4 * (part % 8) + i + (i < 4 ? 0 : 28);
    }
    // 6-bit scales and minimums of the groups g and g + 1, g even, packed in 12 bytes behind two halves that they are
    // multiplied with.
    static __device__ __forceinline__ void scales_and_mins(const u8* b, int g, float (&scale)[2], float (&min)[2]) {
        const uint4 head = __ldg(reinterpret_cast<const uint4*>(b));
        const float d = half_to_float(u16(head.x)), dmin = half_to_float(u16(head.x >> 16));
        const int shift = 8 * (g % 4);
        const u32 low = head.y >> shift, mid = head.z >> shift, high = head.w >> shift;
        const u32 scales = g < 4 ? low & 0x3f3fu : (high & 0x0f0fu) | (low & 0xc0c0u) >> 2;
        const u32 mins = g < 4 ? mid & 0x3f3fu : (high >> 4 & 0x0f0fu) | (mid & 0xc0c0u) >> 2;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            scale[h] = d * number<0>(scales, h);
            min[h] = dmin * number<0>(mins, h);
        }
    }
};

struct Q4_K : Nibbles256 {
    static constexpr int BYTES = 144;
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const u32 q = load4(b + 16 + 4 * part);
        float scale[2], min[2];
        scales_and_mins(b, 2 * (part / 8), scale, min);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 codes = q >> (4 * (i / 4)) & LOW_NIBBLES;
            w[i] = fmaf(scale[i / 4], number<0>(codes, i % 4), -min[i / 4]);
        }
    }
};

struct Q5_K : Nibbles256 {
    static constexpr int BYTES = 176;
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const u32 q = load4(b + 48 + 4 * part), high = load4(b + 16 + 4 * (part % 8)) >> (2 * (part / 8));
        float scale[2], min[2];
        scales_and_mins(b, 2 * (part / 8), scale, min);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 codes = (q >> (4 * (i / 4)) & LOW_NIBBLES) | (high >> (i / 4) & LOW_BITS) << 4;
            w[i] = fmaf(scale[i / 4], number<0>(codes, i % 4), -min[i / 4]);
        }
    }
};

struct Q6_K {
    static constexpr int COLUMNS = 256, RUN = 4, BYTES = 210;
    // A piece takes four bytes of low nibbles: quarters 0 and 2, or 1 and 3, of a half of 128 columns.
    static __device__ __forceinline__ int column(int part, int i) {
        return 128 * (part / 16) + 4 * (part % 16) + i + (i < 4 ? 0 : 60);
    }
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const int half = part / 16, quarter = part % 16 / 8, at = 4 * (part % 8);
        const u32 low = load2(b + 4 * part), high = load2(b + 128 + 32 * half + at);
        const float d = half_at(b + 208);
        const i8* scales = reinterpret_cast<const i8*>(b + 192) + 8 * half + at / 16;
        const float scale[2] = {d * float(scales[2 * quarter]), d * float(scales[2 * quarter + 4])};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 codes = (low >> (4 * (i / 4)) & LOW_NIBBLES) | (high >> (2 * quarter + 4 * (i / 4)) & LOW_PAIRS) << 4;
            w[i] = scale[i / 4] * number<32>(codes, i % 4);
        }
    }
};

// Superblocks whose bytes hold two bits each of the four quarters of a half of 128 columns.
struct Pairs256 {
    static constexpr int COLUMNS = 256, RUN = 2;
    static __device__ __forceinline__ int column(int part, int i) {
        return 128 * (part / 16) + 32 * (i / 2) + 2 * (part % 16) + i % 2;
    }
};

struct Q2_K : Pairs256 {
    static constexpr int BYTES = 84;
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const int half = part / 16, at = 2 * (part % 16);
        const u32 q = *reinterpret_cast<const u16*>(b + 16 + 32 * half + at);
        const float d = half_at(b + 80), dmin = half_at(b + 82);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 packed = b[8 * half + 2 * (i / 2) + at / 16];
            const float scale = d * float(packed & 15), min = dmin * float(packed >> 4);
            w[i] = scale * float(byte_of(q, i % 2) >> (2 * (i / 2)) & 3) - min;
        }
    }
};

struct Q3_K : Pairs256 {
    static constexpr int BYTES = 110;
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const int half = part / 16, at = 2 * (part % 16);
        const u32 q = *reinterpret_cast<const u16*>(b + 32 + 32 * half + at);
        const u32 mask = *reinterpret_cast<const u16*>(b + at);
        const u8* packed = b + 96;
        const float d = half_at(b + 108);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int quarter = i / 2, g = 8 * half + 2 * quarter + at / 16;
            const u32 low = packed[g % 8] >> (4 * (g / 8)) & 15, high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
            const float scale = d * float(int(low | high << 4) - 32);
            const u32 third = byte_of(mask, i % 2) >> (4 * half + quarter) & 1;
            w[i] = scale * float(int((byte_of(q, i % 2) >> (2 * quarter) & 3) | third << 2) - 4);
        }
    }
};

struct IQ4_XS {
    static constexpr int COLUMNS = 256, RUN = 4, BYTES = 136;
    static __device__ __forceinline__ int column(int part, int i) {
        return 32 * (part / 4) + 4 * (part % 4) + i + (i < 4 ? 0 : 12);
    }
    static __device__ __forceinline__ void decode(const u8* b, int part, float (&w)[8]) {
        const int g = part / 4;
        const u32 high = *reinterpret_cast<const u16*>(b + 2), q = load4(b + 8 + 4 * part);
        const u32 low = b[4 + g / 2] >> (4 * (g % 2)) & 15;
        const float scale = half_at(b) * float(int(low | (high >> (2 * g) & 3) << 4) - 32);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = scale * iq4_value(q >> (8 * (i % 4) + 4 * (i / 4)) & 15);
    }
};

// Plain numbers: eight of them stand in for a block, of which the last of a row may lack some.
struct Plain {
    static constexpr int COLUMNS = 8, RUN = 8;
    static __device__ __forceinline__ int column(int, int i) { return i; }
};

struct F32 : Plain {
    static constexpr int BYTES = 32;
    static __device__ __forceinline__ float element(const u8* b, int i) { return reinterpret_cast<const float*>(b)[i]; }
    static __device__ __forceinline__ void decode(const u8* b, int, float (&w)[8]) {
        const float4* v = reinterpret_cast<const float4*>(b);
        const float4 low = __ldg(v), high = __ldg(v + 1);
        w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w;
        w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
    }
};

template <float (*WIDEN)(u16)>
struct Half : Plain {
    static constexpr int BYTES = 16;
    static __device__ __forceinline__ float element(const u8* b, int i) {
        return WIDEN(reinterpret_cast<const u16*>(b)[i]);
    }
    static __device__ __forceinline__ void decode(const u8* b, int, float (&w)[8]) {
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(b));
        const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = WIDEN(u16(words[i / 2] >> (16 * (i % 2))));
    }
};
typedef Half<half_to_float> F16;
typedef Half<bfloat_to_float> BF16;

template <typename T>
struct IsPlain {
    static constexpr bool VALUE = T::COLUMNS == 8;
};

// Piece q of the row at `row` of `cols` columns; weights beyond the row are zero. Gives the piece's first column of
// reference: weight i is that of column `base + T::column(part, i)`.
template <typename T>
__device__ __forceinline__ void decode_piece(const u8* row, int q, int cols, float (&w)[8]) {
    constexpr int PARTS = T::COLUMNS / 8;
    if constexpr (IsPlain<T>::VALUE) {
        if (cols % 8 == 0) {
            T::decode(row + size_t(q) * T::BYTES, 0, w);
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = 8 * q + i < cols ? T::element(row + size_t(q) * T::BYTES, i) : 0.0f;
    } else {
        T::decode(row + size_t(q / PARTS) * T::BYTES, q % PARTS, w);
    }
}

// The column of weight i of piece q.
template <typename T>
__device__ __forceinline__ int piece_column(int q, int i) {
    constexpr int PARTS = T::COLUMNS / 8;
    return q / PARTS * T::COLUMNS + T::column(q % PARTS, i);
}

// The eight activations that belong to piece q; zero beyond the row.
template <typename T>
__device__ __forceinline__ void load_piece(const float* x, int q, int cols, float (&v)[8]) {
    if constexpr (IsPlain<T>::VALUE) {
        if (cols % 8 != 0) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = 8 * q + i < cols ? __ldg(x + 8 * q + i) : 0.0f;
            return;
        }
    }
    if constexpr (T::RUN >= 4) {
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            const float4 run = __ldg(reinterpret_cast<const float4*>(x + piece_column<T>(q, i)));
            v[i] = run.x, v[i + 1] = run.y, v[i + 2] = run.z, v[i + 3] = run.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const float2 run = __ldg(reinterpret_cast<const float2*>(x + piece_column<T>(q, i)));
            v[i] = run.x, v[i + 1] = run.y;
        }
    }
}
