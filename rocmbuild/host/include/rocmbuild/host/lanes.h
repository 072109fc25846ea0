// What kernels compiled for the host see of the executor: where a lane finds itself, and the calls at which it may
// be suspended. A block runs on one thread, its threads as fibres ("lanes"); 32 neighbouring lanes are a wave.
//
// A lane finds its own header from the stack pointer alone: stacks lie in slots of equal, aligned size, and the header
// stands near the top of the slot. No thread-local storage is involved, because the thread-local block of the library
// is the static shared memory (`__shared__` is `thread_local`) and is poisoned between blocks.
#pragma once

#if !defined(__x86_64__) || !defined(__linux__)
#error "the rocmbuild host executor runs on Linux on x86-64 only"
#endif

#include <stddef.h>
#include <stdint.h>

#define ROCMBUILD_HOST_API __attribute__((visibility("hidden")))

struct dim3 {
    uint32_t x, y, z;
    constexpr dim3(uint32_t x_ = 1, uint32_t y_ = 1, uint32_t z_ = 1) : x(x_), y(y_), z(z_) {}
    template <class U3, class = decltype(U3::x + U3::y + U3::z + U3::is_uint3)>
    constexpr dim3(const U3& u) : x(u.x), y(u.y), z(u.z) {}
};

struct uint3 {
    unsigned x, y, z;
    enum { is_uint3 = 0 };  // lets dim3 take a uint3 and nothing else
    constexpr operator dim3() const { return dim3(x, y, z); }
};

namespace rocmbuild_host {

constexpr unsigned wave_size = 32;
constexpr unsigned slot_log2 = 18;  // 256 KiB a lane: stack, header at the top, guard page at the bottom
constexpr uintptr_t slot_size = uintptr_t(1) << slot_log2;
constexpr uintptr_t page_size = 4096;
constexpr uintptr_t header_size = 128;
constexpr size_t dynamic_shared_limit = 65536;

struct Wave;
struct Worker;

/// The block that a worker runs.
struct Block {
    dim3 grid_dim;
    dim3 block_dim;
    uint3 index;
    unsigned threads;
    void* dynamic_shared;
};

/// Who the lane on this stack is.
struct alignas(header_size) LaneHeader {
    uint3 thread;
    uint32_t lane;      // in its wave
    uint32_t position;  // in the order in which the wave's lanes are run
    Wave* wave;
    const Block* block;
    Worker* worker;
    LaneHeader* next_free;  // while the slot is unused
    LaneHeader* follower;   // the lane that ran next when this one last waited
    void* stack;            // while the lane waits
    void* fake_stack;       // AddressSanitizer's, kept across switches
};
static_assert(sizeof(LaneHeader) == header_size, "a header fills its two cache lines");

/// Address of the header in the slot that holds `address`. Slots differ in the low bits, so that the headers and
/// the hot ends of the stacks of one wave do not share a cache set.
constexpr uintptr_t header_address(uintptr_t address) {
    const uintptr_t number = address >> slot_log2;
    return ((number + 1) << slot_log2) - page_size + (number % wave_size) * header_size;
}

/// The running lane. Only inside a kernel.
__attribute__((always_inline)) inline LaneHeader& here() {
    uintptr_t stack;
    __asm__("movq %%rsp, %0" : "=r"(stack));
    return *reinterpret_cast<LaneHeader*>(header_address(stack));
}

/// Operations at which a lane waits for others. The order matches the table of names in the runtime.
enum class Op : uint8_t {
    none,
    syncthreads,
    syncthreads_count,
    syncthreads_and,
    syncthreads_or,
    syncwarp,
    shfl,
    shfl_up,
    shfl_down,
    shfl_xor,
    ballot,
    any,
    all,
    activemask,
    match,
    reduce,
    readfirstlane,
    count_
};

/// Where in the source an operation is called: what tells two divergent operations apart, and what messages name.
struct Site {
    int line;
    const char* file;
    const char* function;
    static constexpr Site current(int line = __builtin_LINE(), const char* file = __builtin_FILE(),
                                  const char* function = __builtin_FUNCTION()) {
        return Site{line, file, function};
    }
};

/// Low half: operation and line. High half: the mask, 0 for the forms that have none (they join whoever is active).
constexpr uint64_t key_of(Op op, uint32_t mask, int line) {
    return uint64_t(mask) << 32 | uint64_t(uint32_t(line) & 0xffffff) << 8 | uint64_t(op);
}

constexpr uint64_t poison = ~uint64_t(0);  // NaN as f16, bf16, f32 and f64; -1 as an integer

/// Waits for the group, then gives the value of lane `source`, `poison` when that lane does not take part.
ROCMBUILD_HOST_API uint64_t exchange(uint64_t value, uint32_t source, uint64_t key, const char* file,
                                     const char* function);
/// Waits for the group; low half: lanes with a predicate, high half: lanes that take part.
ROCMBUILD_HOST_API uint64_t vote(bool predicate, uint64_t key, const char* file, const char* function);
/// Waits for the group, copies all 32 values to `out` and gives the lanes that take part.
ROCMBUILD_HOST_API uint32_t gather(uint64_t value, uint64_t* out, uint64_t key, const char* file, const char* function);
/// Waits for the whole block; gives how many lanes had a predicate.
ROCMBUILD_HOST_API uint32_t barrier(bool predicate, uint64_t key, const char* file, const char* function);

/// Whether kernels have been launched; before that, static objects of the library are made.
ROCMBUILD_HOST_API extern bool launched;
/// What a name of dynamic shared memory at file scope stands for: one address for good, so blocks run one at a time.
ROCMBUILD_HOST_API void* file_scope_shared();
/// The dynamic shared memory of the running block.
__attribute__((always_inline)) inline void* dynamic_shared() {
    return __builtin_expect(launched, 1) ? here().block->dynamic_shared : file_scope_shared();
}

/// Runs a kernel to its end: `run(closure)` once a lane. A configuration that the device refuses sets the last error.
ROCMBUILD_HOST_API void launch_lanes(const char* name, void (*run)(void*), void* closure, dim3 grid, dim3 block,
                                     size_t shared, const void* stream);

/// Launch arguments are evaluated once and passed by value to every lane, as a kernel's are.
template <class Body, class... Args>
void launch(const char* name, const Body& body, dim3 grid, dim3 block, size_t shared, const void* stream,
            Args... args) {
    auto lane = [&]() { body(args...); };
    launch_lanes(
        name, [](void* closure) { (*static_cast<decltype(lane)*>(closure))(); }, &lane, grid, block, shared, stream);
}

}  // namespace rocmbuild_host
