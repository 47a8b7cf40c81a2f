// What a kernel's shared object and the emulated driver agree on.
#pragma once

namespace tvmdml_emulator {

struct Dim {
  unsigned x, y, z;
};

enum class Operation : unsigned {
  sync, ballot, shuffle, shuffle_up, shuffle_down, shuffle_xor, match_any, match_all,
  add, least_signed, most_signed, least_unsigned, most_unsigned, all_bits, any_bits, odd_bits,
  barrier, barrier_count, barrier_and, barrier_or, gather,
};

// What a kernel asks of the driver. `line` is the line of the source, for what is said about a mistake.
struct Services {
  // Waits for the lanes of `mask`. A shuffle's argument is its lane or distance and, from bit 8 on, its width.
  // What `gather` returns is where the lanes' values are.
  unsigned long long (*warp)(Operation, unsigned mask, unsigned long long value, unsigned argument, int line);
  int (*barrier)(Operation, int value, int line);
  unsigned (*converged)(int line);
  void (*fence)();  // a place to let others go on: loops that wait for another group come by
  void (*pause)();
  void (*copy)(void *to, const void *from, unsigned bytes, unsigned there);  // made when it is waited for
  void (*end_copies)();
  void (*await_copies)(unsigned others);
  [[noreturn]] void (*fault)(int code, const char *what, int line);
};

// What a thread of a kernel knows about itself.
struct Here {
  Dim thread, group, threads, groups;
  const Services *services;
  void *worker;
  void *shared;  // what was last converted to an address of shared memory
};

// The stacks of a worker's fibers are slots of one region, whose size is its alignment, and which begins with what each fiber's
// thread knows. So a kernel finds that from the address of its own frame: no thread-local storage, and nothing to pass on.
constexpr unsigned long stack_bits = 16, region_bits = 27, stack_bytes = 1ul << stack_bits, region_bytes = 1ul << region_bits;
constexpr unsigned long first_stack = (region_bytes / stack_bytes * sizeof(Here) + stack_bytes - 1) / stack_bytes;

__attribute__((always_inline)) inline Here &here() {
  const auto frame = reinterpret_cast<unsigned long>(__builtin_frame_address(0));
  return reinterpret_cast<Here *>(frame & ~(region_bytes - 1))[(frame & (region_bytes - 1)) >> stack_bits];
}

// A kernel as its object exports it, under the name tvmdml_kernel_NAME.
struct Parameter {
  unsigned offset, bytes;
  bool pointer;
};
struct Kernel {
  void (*run)(const char *parameters);  // one thread
  unsigned bytes, count, most_threads;
  const Parameter *parameters;
};

}  // namespace tvmdml_emulator
