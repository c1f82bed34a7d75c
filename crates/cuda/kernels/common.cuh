// What all kernels share: fixed-width names, conversions, reductions of a fixed order.
//
// Everything is compiled without contraction (-fmad=false): a multiply-add is fused where fmaf says so and nowhere
// else, so that variants of a kernel for other numbers of rows give the same bits.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float half_to_float(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

__device__ __forceinline__ u16 float_to_half(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ float bfloat_to_float(u16 bits) { return __uint_as_float(u32(bits) << 16); }

__device__ __forceinline__ int clamp(int x, int low, int high) { return max(low, min(x, high)); }

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

// From compute capability 9.0 on a kernel is started while the one before it still runs. This waits until that one has ended
// and its writes are seen, and lets the next one start; every kernel calls it before it reads or writes anything but
// weights.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Sum over the lanes of a warp: pairs 16 apart, then 8, 4, 2, 1. All lanes get it.
__device__ __forceinline__ float warp_sum(float x) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}

// The sums of N values over the lanes of a warp, in the order of warp_sum; N is a power of two up to 32. Lane l gets the
// sum of value l / (32 / N). While there is more than one value a lane gives half of them away at each step, so that 32
// sums take 31 exchanges.
template <int N>
__device__ __forceinline__ float warp_sums(float (&v)[N]) {
    const int lane = threadIdx.x % WARP;
    int offset = 16;
#pragma unroll
    for (int n = N / 2; n > 0; n /= 2, offset /= 2) {
        const bool upper = lane & offset;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float keep = upper ? v[i + n] : v[i];
            const float give = upper ? v[i] : v[i + n];
            v[i] = keep + __shfl_xor_sync(ALL_LANES, give, offset);
        }
    }
    float sum = v[0];
    for (; offset > 0; offset /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    return sum;
}

// Sum over a block of THREADS threads, warps ascending. `scratch` holds THREADS / 32 floats. All threads get it.
template <int THREADS>
__device__ __forceinline__ float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = scratch[0];
    for (int w = 1; w < THREADS / WARP; w++) sum += scratch[w];
    __syncthreads();
    return sum;
}

// The part of a vector that a thread takes: elements first, first + step, ...
#define EACH(i, n) _Pragma("unroll 4") for (int i = threadIdx.x; i < (n); i += blockDim.x)
