// Runs the groups of a launch.
#pragma once

#include <cstddef>
#include <string>

#include "abi.hpp"

namespace tvmdml_emulator {

// The errors of CUDA's that a kernel can end with.
enum KernelError : int {
  none = 0, illegal_address = 700, timeout = 702, stack_error = 714, illegal_instruction = 715, launch_failed = 719,
};

struct Grid {
  const Kernel *kernel;
  std::string name, parameters;
  Dim groups, threads;
  size_t shared_module, shared_bytes;  // the object's thread-local storage: a group's shared memory
};

// Runs all of it before it returns. What went wrong is said on stderr, and the error returned.
int run(const Grid &grid);

// A number from the environment.
long setting(const char *name, long otherwise);

}  // namespace tvmdml_emulator
