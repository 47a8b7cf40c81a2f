// Kernels as the `nvcc` beside this file writes them: loaded, found by name, launched.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "abi.hpp"
#include "streams.hpp"

namespace tvmdml_emulator {

struct Module;

struct Function {
  Module *module;
  const Kernel *kernel;
  std::string name;
  size_t shared_bytes;
};

struct Module {
  Context *context;
  void *library = nullptr;
  int arch = 0;
  size_t shared_module = 0, shared_bytes = 0;
  std::map<std::string, size_t> shared;  // by the name of the function that has it; "" is what any may use
  std::map<std::string, std::unique_ptr<Function>> functions;

  Module(Context *owner, const char *image);
  ~Module();
  Module(const Module &) = delete;
  Module &operator=(const Module &) = delete;
  Function &function(const std::string &name);
};

constexpr size_t most_shared = 48 << 10;

// The pretended devices' compute capability, such as 90 (TVMDML_EMULATED_ARCH).
int device_arch();

// What a launch does when its turn comes.
Run launch(const Function &function, Dim groups, Dim threads, std::string parameters);

}  // namespace tvmdml_emulator
