// The executor: lanes as fibres on one thread a block, waves of 32, barriers, and a pool of threads for the blocks.
//
// No lane is ever preempted, so all of a block's bookkeeping is plain memory of one Worker. A lane that reaches an
// operation deposits its operands and switches straight to the next lane; the last one to arrive works out every
// lane's result and goes on. A lane that ends without having waited leaves its stack to the next lane, so kernels
// that never wait run as a loop on one stack.
//
// Nothing here uses thread_local: the library's thread-local block is its kernels' static shared memory, which is
// poisoned before every block. Nothing uses templates of the C++ library either: they would be exported.

#include <rocmbuild/host/lanes.h>

#include "state.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define ROCMBUILD_HOST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ROCMBUILD_HOST_ASAN 1
#endif
#endif
#if !defined(ROCMBUILD_HOST_ASAN)
#define ROCMBUILD_HOST_ASAN 0
#endif
#if ROCMBUILD_HOST_ASAN
extern "C" {  // the interface that the sanitizer documents; its headers are in another package than a compiler
void __sanitizer_start_switch_fiber(void** fake_stack_save, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack_save, const void** bottom_old, size_t* size_old);
void __asan_poison_memory_region(void const volatile* address, size_t size);
void __asan_unpoison_memory_region(void const volatile* address, size_t size);
}
#define UNCHECKED __attribute__((no_sanitize("address", "undefined")))
#else
#define UNCHECKED
#endif

extern "C" {
/// Saves the callee-saved registers on this stack and its pointer at *save, then goes on where `stack` was saved.
ROCMBUILD_HOST_API void rocmbuild_host_switch(void** save, void* stack);
/// Saves like the above, then calls function(argument) on a fresh stack; the function never returns.
ROCMBUILD_HOST_API void rocmbuild_host_start(void** save, void* top, void (*function)(void*), void* argument);
/// Goes on where `stack` was saved; this stack is given up.
ROCMBUILD_HOST_API void rocmbuild_host_jump(void* stack);
}

// A stack that waits holds, at its top, the address at which it goes on, and below that what the code there restores.
__asm__(R"(
.text
.p2align 4
.hidden rocmbuild_host_switch
.globl rocmbuild_host_switch
.type rocmbuild_host_switch, @function
rocmbuild_host_switch:
    .cfi_startproc
    pushq %rbp
    .cfi_adjust_cfa_offset 8
    pushq %rbx
    .cfi_adjust_cfa_offset 8
    pushq %r12
    .cfi_adjust_cfa_offset 8
    pushq %r13
    .cfi_adjust_cfa_offset 8
    pushq %r14
    .cfi_adjust_cfa_offset 8
    pushq %r15
    .cfi_adjust_cfa_offset 8
    leaq .Lrocmbuild_host_resume(%rip), %rax
    pushq %rax
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %rax
    jmp *%rax
.Lrocmbuild_host_resume:
    popq %r15
    .cfi_adjust_cfa_offset -8
    popq %r14
    .cfi_adjust_cfa_offset -8
    popq %r13
    .cfi_adjust_cfa_offset -8
    popq %r12
    .cfi_adjust_cfa_offset -8
    popq %rbx
    .cfi_adjust_cfa_offset -8
    popq %rbp
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
.size rocmbuild_host_switch, .-rocmbuild_host_switch

.p2align 4
.hidden rocmbuild_host_start
.globl rocmbuild_host_start
.type rocmbuild_host_start, @function
rocmbuild_host_start:
    .cfi_startproc
    .cfi_undefined rip
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    leaq .Lrocmbuild_host_resume(%rip), %rax
    pushq %rax
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    xorl %ebp, %ebp
    movq %rcx, %rdi
    call *%rdx
    ud2
    .cfi_endproc
.size rocmbuild_host_start, .-rocmbuild_host_start

.p2align 4
.hidden rocmbuild_host_jump
.globl rocmbuild_host_jump
.type rocmbuild_host_jump, @function
rocmbuild_host_jump:
    movq %rdi, %rsp
    popq %rax
    jmp *%rax
.size rocmbuild_host_jump, .-rocmbuild_host_jump
)");

namespace rocmbuild_host {
namespace {

constexpr unsigned block_limit = 1024;
constexpr unsigned wave_limit = block_limit / wave_size;
constexpr unsigned thread_limit = 64;

const char* const op_names[] = {
    "nothing",          "__syncthreads", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or", "__syncwarp",
    "__shfl",           "__shfl_up",     "__shfl_down",         "__shfl_xor",        "__ballot",         "__any",
    "__all",            "__activemask",  "__match",             "__reduce",          "readfirstlane",
};
static_assert(sizeof(op_names) / sizeof(*op_names) == size_t(Op::count_), "one name for each operation");

enum class Order { forward, reverse, seeded };

/// What one launch asks for, as the threads of the pool see it.
struct Job {
    const char* name;
    void (*run)(void*);
    void* closure;
    dim3 grid, block;
    size_t shared;
    uint64_t blocks;
    uint64_t chunk;
    uint64_t next;  // atomic: the first block that nobody has taken
    Order order;
    uint64_t seed;
    bool poison;
    bool exits_allowed;
};

}  // namespace

/// Lanes are numbered as in HIP, except in `ready`, whose bits stand in the order in which lanes are run.
struct Wave {
    uint32_t ready;    // may run now
    uint32_t started;  // have a stack
    uint32_t live;     // have not ended
    uint32_t waiting;  // at an operation of the wave
    uint32_t barrier;  // at a barrier of the block
    bool mixed;        // those in `waiting` are not all at one operation
    uint64_t key;      // that operation
    const char* file;
    unsigned size;
    unsigned first;  // thread number of lane 0
    unsigned index;
    uint8_t lane_at[wave_size];
    uint8_t position_of[wave_size];
    LaneHeader* header[wave_size];
    uint64_t value[wave_size];
    uint64_t result[wave_size];
    uint64_t* out[wave_size];
    uint32_t source[wave_size];
    uint64_t keys[wave_size];
    const char* files[wave_size];
    const char* functions[wave_size];
};

/// One thread's means to run blocks.
struct Worker {
    Wave waves[wave_limit];
    Block block;
    uint3 threads[block_limit];  // thread number -> threadIdx, for the block size below
    dim3 threads_of;
    uint8_t wave_at[wave_limit];
    uint8_t wave_position[wave_limit];
    unsigned wave_count;
    uint32_t barrier_count;
    uint32_t barrier_result;
    Job* job;
    LaneHeader* free_slots;
    uintptr_t batches[wave_limit + 1];  // the mappings of the slots, as many as a block can need
    unsigned batch_count;
    void* main_stack;
    void* main_fake_stack;
    const void* main_bottom;
    size_t main_size;
    unsigned char* tls;  // this thread's copy of the library's thread-local block
    size_t tls_size;
    unsigned char* tls_saved;
    size_t tls_saved_size;
    unsigned char* dynamic;  // room for the dynamic shared memory
    pthread_t thread;
    bool busy;  // atomic
};

namespace {

// ---- messages ----

[[gnu::cold]] void print_kernel(const Worker& worker) {
    const Block& b = worker.block;
    const char* name = worker.job->name;
    size_t length = strlen(name);
    while (length > 1 && name[0] == '(' && name[length - 1] == ')') {
        ++name;
        length -= 2;
    }
    fprintf(stderr, "  kernel %.*s, block (%u,%u,%u) of grid (%u,%u,%u), %u x %u x %u threads\n", int(length), name,
            b.index.x, b.index.y, b.index.z, b.grid_dim.x, b.grid_dim.y, b.grid_dim.z, b.block_dim.x, b.block_dim.y,
            b.block_dim.z);
}

/// What a lane is doing, as a number that is equal for lanes that do the same.
UNCHECKED uint64_t state_of(const Wave& wave, unsigned lane) {
    const uint32_t bit = 1u << lane;
    if (!(wave.live & bit)) return 0;
    return (wave.waiting | wave.barrier) & bit ? wave.keys[lane] : 1;
}

[[gnu::cold]] void print_lanes(uint32_t lanes) {
    const char* separator = "";
    for (unsigned lane = 0; lane < wave_size; ++lane) {
        if (!(lanes >> lane & 1)) continue;
        unsigned last = lane;
        while (last + 1 < wave_size && lanes >> (last + 1) & 1) ++last;
        if (last > lane)
            fprintf(stderr, "%s%u-%u", separator, lane, last);
        else
            fprintf(stderr, "%s%u", separator, lane);
        separator = ",";
        lane = last;
    }
}

[[gnu::cold]] void print_states(const Worker& worker) {
    for (unsigned i = 0; i < worker.wave_count; ++i) {
        const Wave& wave = worker.waves[i];
        uint32_t todo = wave.size == wave_size ? ~0u : (1u << wave.size) - 1;
        while (todo) {
            const unsigned first = unsigned(__builtin_ctz(todo));
            const uint64_t state = state_of(wave, first);
            uint32_t same = 0;
            for (unsigned lane = first; lane < wave.size; ++lane)
                if (todo >> lane & 1 && state_of(wave, lane) == state &&
                    (state <= 1 || strcmp(wave.files[lane], wave.files[first]) == 0))
                    same |= 1u << lane;
            todo &= ~same;
            fprintf(stderr, "  wave %u, lanes ", i);
            print_lanes(same);
            if (state == 0) {
                fprintf(stderr, ": have ended\n");
            } else if (state == 1) {
                fprintf(stderr, ": can run\n");
            } else {
                const uint32_t mask = uint32_t(state >> 32);
                fprintf(stderr, ": wait at %s", op_names[state & 255]);
                if (mask) fprintf(stderr, " with mask 0x%08x", mask);
                fprintf(stderr, " (%s:%u, in %s)\n", wave.files[first], unsigned(state >> 8 & 0xffffff),
                        wave.functions[first]);
            }
        }
    }
}

bool failing;  // atomic

[[gnu::cold]] void fail(const Worker& worker, const char* format, ...) {
    // Other threads may find the same fault in their blocks: the first one speaks, and ends them all.
    while (__atomic_exchange_n(&failing, true, __ATOMIC_RELAXED)) pause();
    fflush(stdout);
    fprintf(stderr, "rocmbuild host executor: ");
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    print_kernel(worker);
    print_states(worker);
    fflush(stderr);
    abort();
}

[[gnu::cold]] void fail_plainly(const char* what) {
    fprintf(stderr, "rocmbuild host executor: %s (%s)\n", what, strerror(errno));
    abort();
}

// ---- stacks ----

uintptr_t slot_base(const LaneHeader* header) { return reinterpret_cast<uintptr_t>(header) & ~(slot_size - 1); }
[[maybe_unused]] const void* stack_bottom(const LaneHeader* header) {
    return reinterpret_cast<const void*>(slot_base(header) + page_size);
}
[[maybe_unused]] size_t stack_size(const LaneHeader* header) {
    return reinterpret_cast<uintptr_t>(header) - slot_base(header) - page_size;
}

[[gnu::cold, gnu::noinline]] void add_slots(Worker& worker) {
    constexpr size_t count = wave_size;
    constexpr size_t wanted = (count + 1) * slot_size;
    void* memory = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail_plainly("no memory for the stacks of a wave");
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t first = (begin + slot_size - 1) & ~(slot_size - 1);
    worker.batches[worker.batch_count++] = first;
    if (first > begin) munmap(memory, first - begin);
    const uintptr_t end = first + count * slot_size;
    if (begin + wanted > end) munmap(reinterpret_cast<void*>(end), begin + wanted - end);
    for (size_t i = count; i-- > 0;) {
        const uintptr_t base = first + i * slot_size;
        // Where the kernel's limit of mappings is reached, the batch's lowest page alone guards it.
        mprotect(reinterpret_cast<void*>(base), page_size, PROT_NONE);
        LaneHeader* header = reinterpret_cast<LaneHeader*>(header_address(base));
        header->worker = &worker;
        header->block = &worker.block;
        header->fake_stack = nullptr;
        header->follower = nullptr;
        header->next_free = worker.free_slots;
        worker.free_slots = header;
    }
}

inline LaneHeader* take_slot(Worker& worker) {
    if (!worker.free_slots) add_slots(worker);
    LaneHeader* header = worker.free_slots;
    worker.free_slots = header->next_free;
    return header;
}

inline void give_slot(Worker& worker, LaneHeader* header) {
    header->next_free = worker.free_slots;
    worker.free_slots = header;
}

// ---- switching ----

/// The bits of `lanes` in the order in which the wave runs them.
inline uint32_t positions(const Worker& worker, const Wave& wave, uint32_t lanes) {
    const Order order = worker.job->order;
    if (__builtin_expect(order == Order::forward, 1)) return lanes;
    uint32_t result = 0;
    for (; lanes; lanes &= lanes - 1) result |= 1u << wave.position_of[__builtin_ctz(lanes)];
    return result;
}

/// Takes the next ready lane after `position`, round the wave.
inline unsigned take_ready(Wave& wave, uint32_t position) {
    const uint32_t after = wave.ready & (~1u << position);
    const unsigned next = unsigned(__builtin_ctz(after ? after : wave.ready));
    wave.ready &= ~(1u << next);
    return wave.lane_at[next];
}

inline void enter(LaneHeader* header, Wave& wave, unsigned lane) {
    header->thread = header->worker->threads[wave.first + lane];
    header->lane = lane;
    header->position = wave.position_of[lane];
    header->wave = &wave;
    wave.header[lane] = header;
    wave.started |= 1u << lane;
}

void lane_main(void* argument);

#if !ROCMBUILD_HOST_ASAN
/// rocmbuild_host_switch in place: with no call and return of its own, the processor's prediction of returns holds
/// for lanes that wait at the same place. The 128 bytes are the red zone that the function around may use.
inline __attribute__((always_inline)) void switch_stack(void** save, void* stack) {
    __asm__ volatile(
        "leaq -128(%%rsp), %%rsp\n\t"
        "pushq %%rbp\n\t"
        "pushq %%rbx\n\t"
        "leaq 1f(%%rip), %%rax\n\t"
        "pushq %%rax\n\t"
        "movq %%rsp, (%%rdi)\n\t"
        "movq %%rsi, %%rsp\n\t"
        "popq %%rax\n\t"
        "jmp *%%rax\n"
        "1:\n\t"
        "popq %%rbx\n\t"
        "popq %%rbp\n\t"
        "leaq 128(%%rsp), %%rsp"
        : "+D"(save), "+S"(stack)
        :
        : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3",
          "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory",
          "cc");
}
#endif

/// From the lane of `header`, which waits, to one that has no stack yet.
[[gnu::noinline]] UNCHECKED void start_lane(LaneHeader* header, Wave& wave, unsigned lane) {
    LaneHeader* fresh = take_slot(*header->worker);
    enter(fresh, wave, lane);
#if ROCMBUILD_HOST_ASAN
    __asan_unpoison_memory_region(stack_bottom(fresh), stack_size(fresh));
    __sanitizer_start_switch_fiber(&header->fake_stack, stack_bottom(fresh), stack_size(fresh));
#endif
    rocmbuild_host_start(&header->stack, fresh, lane_main, fresh);
}

/// From the lane of `header`, which waits, to another.
UNCHECKED inline __attribute__((always_inline)) void switch_lane(LaneHeader* header, Wave& wave, unsigned lane) {
    if (__builtin_expect(wave.started >> lane & 1, 1)) {
        LaneHeader* target = wave.header[lane];
#if ROCMBUILD_HOST_ASAN
        __sanitizer_start_switch_fiber(&header->fake_stack, stack_bottom(target), stack_size(target));
        rocmbuild_host_switch(&header->stack, target->stack);
#else
        // Lanes mostly follow one another as they did the time before. Going by that, and checking it on the side,
        // keeps the search above out of the chain of loads that leads from one stack to the next.
        LaneHeader* follower = header->follower;
        LaneHeader* checked = follower;
        __asm__("" : "+r"(checked));  // or the compiler would see that both are `target` and take that
        if (__builtin_expect(checked != target, 0)) header->follower = follower = target;
        switch_stack(&header->stack, follower->stack);
#endif
    } else {
        start_lane(header, wave, lane);
    }
#if ROCMBUILD_HOST_ASAN
    __sanitizer_finish_switch_fiber(header->fake_stack, nullptr, nullptr);
#endif
}

// ---- operations of a wave ----

/// Works out the results of `members`, who all stand at the same operation.
void complete(Wave& wave, uint32_t members, uint64_t key) {
    switch (Op(key & 255)) {
        case Op::shfl:
        case Op::shfl_up:
        case Op::shfl_down:
        case Op::shfl_xor:
            if (members == ~0u) {
                for (unsigned lane = 0; lane < wave_size; ++lane) {
                    const uint32_t source = wave.source[lane];
                    wave.result[lane] = source < wave_size ? wave.value[source] : poison;
                }
            } else {
                for (uint32_t rest = members; rest; rest &= rest - 1) {
                    const unsigned lane = unsigned(__builtin_ctz(rest));
                    const uint32_t source = wave.source[lane];
                    wave.result[lane] = source < wave_size && members >> source & 1 ? wave.value[source] : poison;
                }
            }
            break;
        case Op::match:
        case Op::reduce:
        case Op::readfirstlane:
            for (uint32_t rest = members; rest; rest &= rest - 1) {
                const unsigned lane = unsigned(__builtin_ctz(rest));
                memcpy(wave.out[lane], wave.value, sizeof(wave.value));
                wave.result[lane] = members;
            }
            break;
        default: {
            uint32_t votes = 0;
            for (unsigned lane = 0; lane < wave_size; ++lane) votes |= uint32_t(wave.value[lane] & 1) << lane;
            const uint64_t result = uint64_t(members) << 32 | (votes & members);
            for (unsigned lane = 0; lane < wave_size; ++lane)
                if (members >> lane & 1) wave.result[lane] = result;
        }
    }
}

void release(const Worker& worker, Wave& wave, uint32_t members) {
    complete(wave, members, wave.keys[__builtin_ctz(members)]);
    wave.waiting &= ~members;
    wave.mixed = wave.waiting != 0;
    wave.ready |= positions(worker, wave, members);
}

/// Whether lane a's operation stands before lane b's in the source; by file and function where they differ.
bool earlier(const Wave& wave, unsigned a, unsigned b) {
    if (const int files = strcmp(wave.files[a], wave.files[b])) return files < 0;
    if (const int functions = strcmp(wave.functions[a], wave.functions[b])) return functions < 0;
    const uint32_t line_a = uint32_t(wave.keys[a] >> 8 & 0xffffff), line_b = uint32_t(wave.keys[b] >> 8 & 0xffffff);
    if (line_a != line_b) return line_a < line_b;
    return (wave.keys[a] & 255) < (wave.keys[b] & 255);
}

/// The waiting lanes that stand at the same operation as `lane`.
uint32_t group_of(const Wave& wave, unsigned lane) {
    uint32_t group = 0;
    for (uint32_t rest = wave.waiting; rest; rest &= rest - 1) {
        const unsigned other = unsigned(__builtin_ctz(rest));
        if (wave.keys[other] == wave.keys[lane] &&
            (wave.files[other] == wave.files[lane] || strcmp(wave.files[other], wave.files[lane]) == 0))
            group |= 1u << other;
    }
    return group;
}

/// No lane of the wave can run: lets complete groups go on. Groups with a mask are complete when every live lane of
/// the mask has come; of the forms without one, the earliest in the source goes first, as where branches join again.
[[gnu::noinline]] void resolve(const Worker& worker, Wave& wave) {
    uint32_t unmasked = 0;
    bool released = false;
    for (uint32_t todo = wave.waiting; todo;) {
        const unsigned lane = unsigned(__builtin_ctz(todo));
        const uint32_t group = group_of(wave, lane);
        const uint32_t mask = uint32_t(wave.keys[lane] >> 32);
        todo &= ~group;
        if (mask == 0) {
            unmasked |= group;
            continue;
        }
        if (group & ~mask)
            fail(worker, "a lane calls %s with a mask that does not hold itself", op_names[wave.keys[lane] & 255]);
        if ((mask & wave.live) == group) {
            release(worker, wave, group);
            released = true;
        }
    }
    if (released || !unmasked) return;
    unsigned first = unsigned(__builtin_ctz(unmasked));
    for (uint32_t rest = unmasked; rest; rest &= rest - 1) {
        const unsigned lane = unsigned(__builtin_ctz(rest));
        if (earlier(wave, lane, first)) first = lane;
    }
    release(worker, wave, group_of(wave, first));
}

// ---- the block ----

/// Every live lane waits and no wave can go on by itself: opens the barrier, or says why it cannot.
void open_barrier(Worker& worker) {
    const Wave* first = nullptr;
    bool ended = false;
    for (unsigned i = 0; i < worker.wave_count; ++i) {
        const Wave& wave = worker.waves[i];
        if (wave.waiting) {
            if (wave.barrier || wave.live != wave.waiting || wave.mixed)
                fail(worker, "lanes of a wave diverge: some wait at an operation that the others will not reach");
            fail(worker, "lanes wait at an operation of their wave that cannot be complete");
        }
        if (wave.size != unsigned(__builtin_popcount(wave.live))) ended = true;
        if (wave.live && !first) first = &wave;
    }
    const unsigned kind = first->keys[__builtin_ctz(first->live)] & 255;
    for (unsigned i = 0; i < worker.wave_count; ++i) {
        const Wave& wave = worker.waves[i];
        for (uint32_t rest = wave.live; rest; rest &= rest - 1) {
            const unsigned lane = unsigned(__builtin_ctz(rest)), other = unsigned(__builtin_ctz(wave.live));
            if ((wave.keys[lane] & 255) != kind)
                fail(worker, "divergent barrier: lanes wait at barriers of different kinds");
            if (wave.keys[lane] != wave.keys[other])
                fail(worker, "divergent barrier: lanes of one wave wait at different barriers");
        }
    }
    if (ended && !worker.job->exits_allowed)
        fail(worker,
             "divergent barrier: some lanes have ended while others wait at it "
             "(ROCMBUILD_HOST_EXITED_LANES=allow takes them as arrived)");
    worker.barrier_result = worker.barrier_count;
    worker.barrier_count = 0;
    for (unsigned i = 0; i < worker.wave_count; ++i) {
        Wave& wave = worker.waves[i];
        wave.ready = positions(worker, wave, wave.live);
        wave.barrier = 0;
    }
}

/// The wave that runs next, from `wave` on, or null when the block has ended.
[[gnu::noinline]] Wave* next_wave(Worker& worker, const Wave* wave) {
    for (;;) {
        const unsigned start = worker.wave_position[wave->index];
        bool live = false;
        for (unsigned i = 0; i < worker.wave_count; ++i) {
            unsigned position = start + i;
            if (position >= worker.wave_count) position -= worker.wave_count;
            Wave& candidate = worker.waves[worker.wave_at[position]];
            if (!candidate.ready && candidate.waiting) resolve(worker, candidate);
            if (candidate.ready) return &candidate;
            live = live || candidate.live != 0;
        }
        if (!live) return nullptr;
        open_barrier(worker);
        wave = &worker.waves[worker.wave_at[0]];
    }
}

/// The lane of `header` waits and no other of its wave can run.
[[gnu::noinline]] UNCHECKED void leave_wave(LaneHeader* header) {
    Wave* wave = next_wave(*header->worker, header->wave);
    const unsigned lane = take_ready(*wave, wave == header->wave ? header->position : wave_size - 1);
    if (wave == header->wave && lane == header->lane) return;
    switch_lane(header, *wave, lane);
}

/// The lane of `header` waits; comes back when it may go on.
UNCHECKED inline __attribute__((always_inline)) void suspend(LaneHeader* header) {
    Wave& wave = *header->wave;
    if (__builtin_expect(wave.ready != 0, 1))
        switch_lane(header, wave, take_ready(wave, header->position));
    else
        leave_wave(header);
}

/// Runs lanes on one stack until a lane that waits elsewhere has to go on there.
UNCHECKED void lane_main(void* argument) {
    LaneHeader* header = static_cast<LaneHeader*>(argument);
    Worker& worker = *header->worker;
#if ROCMBUILD_HOST_ASAN
    const void* bottom = nullptr;
    size_t size = 0;
    __sanitizer_finish_switch_fiber(header->fake_stack, &bottom, &size);
    if (!worker.main_bottom) {
        worker.main_bottom = bottom;
        worker.main_size = size;
    }
#endif
    void (*const run)(void*) = worker.job->run;
    void* const closure = worker.job->closure;
    for (;;) {
        run(closure);
        Wave* wave = header->wave;
        uint32_t position = header->position;
        wave->live &= ~(1u << header->lane);
        if (!wave->ready) {
            Wave* next = next_wave(worker, wave);
            if (next != wave) position = wave_size - 1;
            wave = next;
            if (!wave) break;
        }
        const unsigned lane = take_ready(*wave, position);
        if (wave->started >> lane & 1) {
            give_slot(worker, header);
#if ROCMBUILD_HOST_ASAN
            __sanitizer_start_switch_fiber(&header->fake_stack, stack_bottom(wave->header[lane]),
                                           stack_size(wave->header[lane]));
#endif
            rocmbuild_host_jump(wave->header[lane]->stack);
        }
        enter(header, *wave, lane);
    }
    give_slot(worker, header);
#if ROCMBUILD_HOST_ASAN
    __sanitizer_start_switch_fiber(&header->fake_stack, worker.main_bottom, worker.main_size);
#endif
    rocmbuild_host_jump(worker.main_stack);
}

inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/// order[position] and its inverse for `count` items.
void make_order(Order order, uint64_t seed, unsigned count, uint8_t* at, uint8_t* position_of) {
    for (unsigned i = 0; i < count; ++i) at[i] = uint8_t(order == Order::reverse ? count - 1 - i : i);
    if (order == Order::seeded) {
        for (unsigned i = count; i-- > 1;) {
            seed = mix(seed);
            const unsigned j = unsigned(seed % (i + 1));
            const uint8_t held = at[i];
            at[i] = at[j];
            at[j] = held;
        }
    }
    for (unsigned i = 0; i < count; ++i) position_of[at[i]] = uint8_t(i);
}

/// Orders of waves and lanes: once a job, and for a seeded order once a block.
void order_lanes(Worker& worker, uint64_t block) {
    const Job& job = *worker.job;
    const uint64_t seed = mix(job.seed) ^ mix(block);
    make_order(job.order, seed, worker.wave_count, worker.wave_at, worker.wave_position);
    for (unsigned i = 0; i < worker.wave_count; ++i) {
        Wave& wave = worker.waves[i];
        make_order(job.order, mix(seed + i + 1), wave.size, wave.lane_at, wave.position_of);
    }
}

/// Fills shared memory with what no kernel may have left there: 0xff, a NaN in every format.
void poison_shared(const Worker& worker) {
    if (!worker.job->poison) return;
    memset(worker.block.dynamic_shared, 0xff, worker.job->shared);
    if (worker.tls_size) memset(worker.tls, 0xff, worker.tls_size);
}

void run_block(Worker& worker, uint64_t number) {
    const Job& job = *worker.job;
    Block& block = worker.block;
    block.index.x = unsigned(number % job.grid.x);
    block.index.y = unsigned(number / job.grid.x % job.grid.y);
    block.index.z = unsigned(number / job.grid.x / job.grid.y);
    if (job.order == Order::seeded) order_lanes(worker, number);
    for (unsigned i = 0; i < worker.wave_count; ++i) {
        Wave& wave = worker.waves[i];
        wave.live = wave.size == wave_size ? ~0u : (1u << wave.size) - 1;
        wave.ready = wave.live;
        wave.started = wave.waiting = wave.barrier = 0;
        wave.mixed = false;
    }
    worker.barrier_count = 0;
    poison_shared(worker);
    Wave& wave = worker.waves[worker.wave_at[0]];
    LaneHeader* header = take_slot(worker);
    enter(header, wave, take_ready(wave, wave_size - 1));
#if ROCMBUILD_HOST_ASAN
    __asan_unpoison_memory_region(stack_bottom(header), stack_size(header));
    __sanitizer_start_switch_fiber(&worker.main_fake_stack, stack_bottom(header), stack_size(header));
#endif
    rocmbuild_host_start(&worker.main_stack, header, lane_main, header);
#if ROCMBUILD_HOST_ASAN
    __sanitizer_finish_switch_fiber(worker.main_fake_stack, nullptr, nullptr);
#endif
}

// ---- static shared memory: the library's thread-local block ----

__thread volatile char tls_anchor;
unsigned char* fixed_dynamic;  // set before the first launch where names at file scope stand for it

/// Where the anchor lies in the library's thread-local block, and the block's size: the same for every thread.
struct TlsShape {
    bool known;
    size_t offset;
    size_t size;
};
TlsShape tls_shape;  // written under the launch lock, before other threads see the job

int find_tls(dl_phdr_info* info, size_t, void*) {
    const uintptr_t own = reinterpret_cast<uintptr_t>(&tls_shape);
    bool here = false;
    size_t size = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr)& header = info->dlpi_phdr[i];
        if (header.p_type == PT_LOAD && own - (info->dlpi_addr + header.p_vaddr) < header.p_memsz) here = true;
        if (header.p_type == PT_TLS) size = header.p_memsz;
    }
    if (!here) return 0;
    // In a sanitized executable the block holds the sanitizer's own state.
    if (!info->dlpi_tls_data || (ROCMBUILD_HOST_ASAN && info->dlpi_name[0] == '\0')) return 1;
    tls_shape.offset = size_t(reinterpret_cast<uintptr_t>(&tls_anchor) - reinterpret_cast<uintptr_t>(info->dlpi_tls_data));
    tls_shape.size = size;
    return 1;
}

void learn_tls_shape() {
    if (tls_shape.known) return;
    tls_anchor = 0;  // a thread's block exists from its first use on
    dl_iterate_phdr(find_tls, nullptr);
    tls_shape.known = true;
}

/// A job begins on this thread. The thread may be the program's own, so what its thread-local block holds is kept.
void open_shared(Worker& worker) {
    tls_anchor = 0;
    worker.tls_size = tls_shape.size;
    worker.tls = reinterpret_cast<unsigned char*>(reinterpret_cast<uintptr_t>(&tls_anchor) - tls_shape.offset);
    if (worker.tls_size > worker.tls_saved_size) {
        free(worker.tls_saved);
        worker.tls_saved = static_cast<unsigned char*>(malloc(worker.tls_size));
        if (!worker.tls_saved) fail_plainly("no memory to keep the thread-local block");
        worker.tls_saved_size = worker.tls_size;
    }
    if (worker.tls_size) memcpy(worker.tls_saved, worker.tls, worker.tls_size);

    // The dynamic part ends where an unmapped page begins.
    unsigned char* end = worker.dynamic + dynamic_shared_limit;
    const size_t room = (worker.job->shared + 127) & ~size_t(127);
    worker.block.dynamic_shared = fixed_dynamic ? worker.dynamic : end - room;
#if ROCMBUILD_HOST_ASAN
    unsigned char* used = static_cast<unsigned char*>(worker.block.dynamic_shared);
    __asan_poison_memory_region(worker.dynamic, size_t(used - worker.dynamic));
    __asan_poison_memory_region(used + worker.job->shared, size_t(end - used) - worker.job->shared);
#endif
}

void close_shared(Worker& worker) {
    if (worker.tls_size) memcpy(worker.tls, worker.tls_saved, worker.tls_size);
#if ROCMBUILD_HOST_ASAN
    __asan_unpoison_memory_region(worker.dynamic, dynamic_shared_limit);
#endif
}

// ---- jobs ----

void prepare(Worker& worker, Job& job) {
    worker.job = &job;
    worker.thread = pthread_self();
    worker.main_bottom = nullptr;
    worker.block.grid_dim = job.grid;
    worker.block.block_dim = job.block;
    worker.block.threads = job.block.x * job.block.y * job.block.z;
    worker.wave_count = (worker.block.threads + wave_size - 1) / wave_size;
    if (worker.threads_of.x != job.block.x || worker.threads_of.y != job.block.y || worker.threads_of.z != job.block.z) {
        unsigned thread = 0;
        for (unsigned z = 0; z < job.block.z; ++z)
            for (unsigned y = 0; y < job.block.y; ++y)
                for (unsigned x = 0; x < job.block.x; ++x) worker.threads[thread++] = uint3{x, y, z};
        worker.threads_of = job.block;
    }
    for (unsigned i = 0; i < worker.wave_count; ++i) {
        Wave& wave = worker.waves[i];
        wave.index = i;
        wave.first = i * wave_size;
        wave.size = worker.block.threads - wave.first < wave_size ? worker.block.threads - wave.first : wave_size;
    }
    order_lanes(worker, 0);
}

void run_job(Worker& worker, Job& job) {
    __atomic_store_n(&worker.busy, true, __ATOMIC_RELAXED);
    // Numbers behave as on the device whatever the program has set: denormals kept, nearest-even.
    const unsigned control = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1f80);
    prepare(worker, job);
    open_shared(worker);
    for (;;) {
        const uint64_t begin = __atomic_fetch_add(&job.next, job.chunk, __ATOMIC_RELAXED);
        if (begin >= job.blocks) break;
        const uint64_t end = job.blocks - begin < job.chunk ? job.blocks : begin + job.chunk;
        for (uint64_t number = begin; number < end; ++number) run_block(worker, number);
    }
    close_shared(worker);
    __builtin_ia32_ldmxcsr(control);
    __atomic_store_n(&worker.busy, false, __ATOMIC_RELAXED);
}

/// The pool of one library in one process. A child made by fork gets a new one: its parent's threads are not there.
struct Pool {
    pid_t process;
    pthread_mutex_t launch;  // one launch at a time
    pthread_mutex_t mutex;   // for what follows
    pthread_cond_t wake, done;
    Job* job;
    uint64_t generation;
    unsigned wanted;   // helpers that may join the job
    unsigned active;   // helpers at work
    unsigned helpers;  // threads that exist
    bool quit;
    pthread_t threads[thread_limit];
    Worker* workers[thread_limit];  // 0: the launching thread's
};

Pool* pool;  // atomic

unsigned char* new_dynamic() {
    constexpr size_t size = dynamic_shared_limit + 2 * page_size;
    void* memory = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail_plainly("no memory for shared memory");
    unsigned char* begin = static_cast<unsigned char*>(memory) + page_size;
    if (mprotect(begin, dynamic_shared_limit, PROT_READ | PROT_WRITE) != 0) fail_plainly("no memory for shared memory");
    return begin;
}

Worker* new_worker() {
    void* memory = mmap(nullptr, sizeof(Worker), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail_plainly("no memory for a worker");
    Worker* worker = static_cast<Worker*>(memory);
    worker->dynamic = fixed_dynamic ? fixed_dynamic : new_dynamic();
    return worker;
}

void drop_dynamic(unsigned char* dynamic) { munmap(dynamic - page_size, dynamic_shared_limit + 2 * page_size); }

void drop_worker(Worker* worker) {
    if (worker->dynamic != fixed_dynamic) drop_dynamic(worker->dynamic);
    for (unsigned i = 0; i < worker->batch_count; ++i) munmap(reinterpret_cast<void*>(worker->batches[i]), wave_size * slot_size);
    free(worker->tls_saved);
    munmap(worker, sizeof(Worker));
}

struct HelperStart {
    Pool* pool;
    unsigned number;
};

void* helper_main(void* argument) {
    const HelperStart start = *static_cast<HelperStart*>(argument);
    free(argument);
    Pool& own = *start.pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&own.mutex);
    for (;;) {
        while (!own.quit && (!own.job || own.generation == seen || start.number > own.wanted))
            pthread_cond_wait(&own.wake, &own.mutex);
        if (own.quit) break;
        seen = own.generation;
        Job* job = own.job;
        ++own.active;
        pthread_mutex_unlock(&own.mutex);
        run_job(*own.workers[start.number], *job);
        pthread_mutex_lock(&own.mutex);
        if (--own.active == 0) pthread_cond_signal(&own.done);
    }
    pthread_mutex_unlock(&own.mutex);
    return nullptr;
}

Pool& own_pool() {
    Pool* current = __atomic_load_n(&pool, __ATOMIC_ACQUIRE);
    if (current && current->process == getpid()) return *current;
    Pool* fresh = static_cast<Pool*>(calloc(1, sizeof(Pool)));
    if (!fresh) fail_plainly("no memory for the pool of threads");
    fresh->process = getpid();
    pthread_mutex_init(&fresh->launch, nullptr);
    pthread_mutex_init(&fresh->mutex, nullptr);
    pthread_cond_init(&fresh->wake, nullptr);
    pthread_cond_init(&fresh->done, nullptr);
    fresh->workers[0] = new_worker();
    if (__atomic_compare_exchange_n(&pool, &current, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return *fresh;
    drop_worker(fresh->workers[0]);
    free(fresh);
    return *current;
}

/// Threads that a job of so many blocks may use, the launching one included; makes the missing ones.
unsigned gather_threads(Pool& own, unsigned limit, uint64_t blocks) {
    unsigned wanted = blocks < limit ? unsigned(blocks) : limit;
    while (own.helpers + 1 < wanted) {
        const unsigned number = own.helpers + 1;
        HelperStart* start = static_cast<HelperStart*>(malloc(sizeof(HelperStart)));
        if (!start) break;
        *start = HelperStart{&own, number};
        if (!own.workers[number]) own.workers[number] = new_worker();
        if (pthread_create(&own.threads[number], nullptr, helper_main, start) != 0) {
            free(start);
            break;
        }
        ++own.helpers;
    }
    return own.helpers + 1 < wanted ? own.helpers + 1 : wanted;
}

void dispatch(Pool& own, Job& job, unsigned limit) {
    pthread_mutex_lock(&own.launch);
    learn_tls_shape();
    const unsigned threads = gather_threads(own, limit, job.blocks);
    job.chunk = job.blocks / (uint64_t(threads) * 8);
    if (job.chunk < 1) job.chunk = 1;
    if (job.chunk > 256) job.chunk = 256;
    if (threads > 1) {
        pthread_mutex_lock(&own.mutex);
        own.job = &job;
        own.wanted = threads - 1;
        ++own.generation;
        pthread_cond_broadcast(&own.wake);
        pthread_mutex_unlock(&own.mutex);
    }
    run_job(*own.workers[0], job);
    if (threads > 1) {
        pthread_mutex_lock(&own.mutex);
        own.job = nullptr;
        while (own.active) pthread_cond_wait(&own.done, &own.mutex);
        pthread_mutex_unlock(&own.mutex);
    }
    pthread_mutex_unlock(&own.launch);
}

/// The library goes, or the process ends: no thread may stay in code that is no longer there.
__attribute__((destructor)) void stop_pool() {
    Pool* own = __atomic_load_n(&pool, __ATOMIC_ACQUIRE);
    if (!own || own->process != getpid() || pthread_mutex_trylock(&own->launch) != 0) return;
    pthread_mutex_lock(&own->mutex);
    own->quit = true;
    pthread_cond_broadcast(&own->wake);
    pthread_mutex_unlock(&own->mutex);
    for (unsigned i = 1; i <= own->helpers; ++i) pthread_join(own->threads[i], nullptr);
    for (Worker* worker : own->workers)
        if (worker) drop_worker(worker);
    if (fixed_dynamic) drop_dynamic(fixed_dynamic);
    free(own);
    pool = nullptr;
}

unsigned processors() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
    const int count = CPU_COUNT(&set);
    return count < 1 ? 1 : unsigned(count);
}

/// A variable as a whole number, or `otherwise` with one line that says what was wrong.
uint64_t number_from(const char* name, uint64_t otherwise, uint64_t low, uint64_t high) {
    const char* text = getenv(name);
    if (!text || !*text) return otherwise;
    char* end = nullptr;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno == 0 && *end == '\0' && *text >= '0' && *text <= '9' && value >= low && value <= high) return value;
    fprintf(stderr, "rocmbuild host executor: %s=%s is not a number from %llu to %llu; taking %llu\n", name, text,
            (unsigned long long)low, (unsigned long long)high, (unsigned long long)otherwise);
    return otherwise;
}

void read_order(Job& job) {
    const char* text = getenv("ROCMBUILD_HOST_ORDER");
    job.order = Order::forward;
    job.seed = 0;
    if (!text || !*text || strcmp(text, "forward") == 0) return;
    if (strcmp(text, "reverse") == 0) {
        job.order = Order::reverse;
        return;
    }
    job.order = Order::seeded;
    job.seed = number_from("ROCMBUILD_HOST_ORDER", 0, 0, ~uint64_t(0));
}

hipError_t refused(dim3 grid, dim3 block, size_t shared) {
    const uint64_t threads = uint64_t(block.x) * block.y * block.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0) return hipErrorInvalidConfiguration;
    if (block.x > block_limit || block.y > block_limit || block.z > block_limit || threads > block_limit)
        return hipErrorInvalidConfiguration;
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return hipErrorInvalidConfiguration;
    if (uint64_t(grid.x) * block.x > 0xffffffffu) return hipErrorInvalidConfiguration;
    if (shared > dynamic_shared_limit) return hipErrorInvalidValue;
    return hipSuccess;
}

}  // namespace

bool launched;

void* file_scope_shared() {
    if (!fixed_dynamic) fixed_dynamic = new_dynamic();
    return fixed_dynamic;
}

void launch_lanes(const char* name, void (*run)(void*), void* closure, dim3 grid, dim3 block, size_t shared,
                  const void*) {
    if (const hipError_t error = refused(grid, block, shared)) {
        set_last_error(error);
        return;
    }
    __atomic_store_n(&launched, true, __ATOMIC_RELAXED);
    Pool& own = own_pool();
    for (unsigned i = 0; i < thread_limit && own.workers[i]; ++i) {
        const Worker& worker = *own.workers[i];
        if (__atomic_load_n(&worker.busy, __ATOMIC_RELAXED) && pthread_equal(worker.thread, pthread_self()))
            fail(worker, "a kernel launches a kernel (%s)", name);
    }
    Job job = {};
    job.name = name;
    job.run = run;
    job.closure = closure;
    job.grid = grid;
    job.block = block;
    job.shared = shared;
    job.blocks = uint64_t(grid.x) * grid.y * grid.z;
    job.poison = number_from("ROCMBUILD_HOST_POISON", 1, 0, 1) != 0;
    const char* exits = getenv("ROCMBUILD_HOST_EXITED_LANES");
    job.exits_allowed = exits && strcmp(exits, "allow") == 0;
    read_order(job);
    const unsigned count = processors();
    const uint64_t limit = number_from("ROCMBUILD_HOST_THREADS", count < thread_limit ? count : thread_limit, 1, thread_limit);
    dispatch(own, job, fixed_dynamic ? 1 : unsigned(limit));
}

// ---- what kernels call ----

namespace {

/// Waits until the lane's operation is complete; its result then stands in its wave.
UNCHECKED inline __attribute__((always_inline)) void meet(LaneHeader* header, uint64_t key, const char* file,
                                                          const char* function) {
    Wave& wave = *header->wave;
    const uint32_t lane = header->lane;
    wave.keys[lane] = key;
    wave.files[lane] = file;
    wave.functions[lane] = function;
    if (wave.waiting == 0) {
        wave.key = key;
        wave.file = file;
        wave.mixed = false;
    } else {
        wave.mixed |= (key != wave.key) | (file != wave.file);
    }
    wave.waiting |= 1u << lane;
    if (wave.waiting == wave.live && !wave.mixed) {
        const uint32_t mask = uint32_t(key >> 32);
        if (mask == 0 || (wave.live & ~mask) == 0) {
            complete(wave, wave.live, key);
            wave.waiting = 0;
            wave.ready = positions(*header->worker, wave, wave.live & ~(1u << lane));
            return;
        }
    }
    suspend(header);
}

}  // namespace

UNCHECKED uint64_t exchange(uint64_t value, uint32_t source, uint64_t key, const char* file, const char* function) {
    LaneHeader* header = &here();
    Wave& wave = *header->wave;
    const uint32_t lane = header->lane;
    wave.value[lane] = value;
    wave.source[lane] = source;
    meet(header, key, file, function);
    return wave.result[lane];
}

UNCHECKED uint64_t vote(bool predicate, uint64_t key, const char* file, const char* function) {
    LaneHeader* header = &here();
    Wave& wave = *header->wave;
    const uint32_t lane = header->lane;
    wave.value[lane] = predicate;
    meet(header, key, file, function);
    return wave.result[lane];
}

UNCHECKED uint32_t gather(uint64_t value, uint64_t* out, uint64_t key, const char* file, const char* function) {
    LaneHeader* header = &here();
    Wave& wave = *header->wave;
    const uint32_t lane = header->lane;
    wave.value[lane] = value;
    wave.out[lane] = out;
    meet(header, key, file, function);
    return uint32_t(wave.result[lane]);
}

UNCHECKED uint32_t barrier(bool predicate, uint64_t key, const char* file, const char* function) {
    LaneHeader* header = &here();
    Wave& wave = *header->wave;
    Worker& worker = *header->worker;
    const uint32_t lane = header->lane;
    wave.keys[lane] = key;
    wave.files[lane] = file;
    wave.functions[lane] = function;
    wave.barrier |= 1u << lane;
    worker.barrier_count += predicate;
    suspend(header);
    return worker.barrier_result;
}

}  // namespace rocmbuild_host
