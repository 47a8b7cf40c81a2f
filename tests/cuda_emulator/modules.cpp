// Kernels as the `nvcc` beside this file writes them: loaded, found by name, launched. Machine code is an ELF shared object of this
// computer's; "PTX" is the source, compiled when it is loaded.
#include "modules.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "grid.hpp"
#include "memory.hpp"

extern char **environ;

namespace tvmdml_emulator {

namespace {

using Header = ElfW(Ehdr);
using Section = ElfW(Shdr);
using Symbol = ElfW(Sym);
using Segment = ElfW(Phdr);

void say(const std::string &text) { fprintf(stderr, "tvmdml's CUDA emulator: %s\n", text.c_str()); }

// By a file of a name that no other had, as dlopen takes equal names for the same library; it is gone when it is loaded. (One that never
// had a name would be known as a number of a descriptor, and whoever looks for symbols there would find another file.)
void *load(const char *image, size_t bytes) {
  static std::atomic<unsigned> count{0};
  const char *const folder = getenv("TMPDIR");
  const std::string place = std::string(folder && *folder ? folder : "/tmp") + "/tvmdml-emulated-" + std::to_string(getpid());
  const auto ours = reinterpret_cast<uintptr_t>(&count);  // there may be several emulators in a process
  const std::string path = place + "-" + std::to_string(ours) + "-" + std::to_string(count++) + ".so";
  const int file = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  require(file >= 0, CUDA_ERROR_OUT_OF_MEMORY);
  const bool whole = write(file, image, bytes) == static_cast<ssize_t>(bytes);
  close(file);
  void *const library = whole ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (whole && !library) say(dlerror());
  unlink(path.c_str());
  require(whole, CUDA_ERROR_OUT_OF_MEMORY);
  require(library != nullptr, CUDA_ERROR_INVALID_IMAGE);
  return library;
}

// The source in a PTX text, compiled for this device.
std::string compile(const char *ptx) {
  const char *const target = strstr(ptx, "// target "), *const source = target ? strchr(target, '\n') : nullptr;
  require(source != nullptr, CUDA_ERROR_INVALID_PTX);
  require(atoi(target + strlen("// target ")) <= device_arch(), CUDA_ERROR_NO_BINARY_FOR_GPU);
  Dl_info here;
  dladdr(reinterpret_cast<void *>(&device_arch), &here);
  const std::string library = here.dli_fname, beside = library.substr(0, library.rfind('/') + 1) + "nvcc";
  const char *const named = getenv("TVMDML_NVCC");
  const std::string compiler = access(beside.c_str(), X_OK) == 0 ? beside : named ? named : "nvcc";
  char folder[] = "/tmp/tvmdml-emulator-XXXXXX";
  require(mkdtemp(folder) != nullptr, CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
  const std::string from = std::string(folder) + "/kernel.cu", to = std::string(folder) + "/kernel.cubin";
  std::ofstream(from) << source + 1;
  const std::string arch = "-arch=sm_" + std::to_string(device_arch());
  const char *const arguments[] = {compiler.c_str(), "-cubin", arch.c_str(), "-o", to.c_str(), from.c_str(), nullptr};
  pid_t child = 0;
  int status = -1;
  if (posix_spawnp(&child, compiler.c_str(), nullptr, nullptr, const_cast<char **>(arguments), environ) == 0)
    waitpid(child, &status, 0);
  std::ifstream made(to, std::ios::binary);
  std::string image{std::istreambuf_iterator<char>(made), {}};
  unlink(from.c_str()), unlink(to.c_str()), rmdir(folder);
  require(status == 0 && !image.empty(), CUDA_ERROR_INVALID_PTX);
  return image;
}

}  // namespace

int device_arch() { return static_cast<int>(setting("TVMDML_EMULATED_ARCH", 90)); }

Module::Module(Context *owner, const char *image) : context(owner) {
  std::string compiled;
  if (strncmp(image, "// ", 3) == 0 || strstr(image, ".version")) image = (compiled = compile(image)).data();
  require(memcmp(image, ELFMAG, SELFMAG) == 0, CUDA_ERROR_INVALID_IMAGE);
  Header header;
  memcpy(&header, image, sizeof header);
  require(header.e_type == ET_DYN, CUDA_ERROR_INVALID_IMAGE);
  const std::string bytes(image, header.e_shoff + size_t{header.e_shnum} * header.e_shentsize);  // the sections' table is its last
  library = load(bytes.data(), bytes.size());
  const auto *const made_for = static_cast<const int *>(dlsym(library, "tvmdml_arch"));
  if (!made_for || *made_for / 10 != device_arch() / 10 || *made_for > device_arch()) {
    dlclose(library);
    fail(made_for ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_ERROR_INVALID_IMAGE);
  }
  arch = *made_for;

  // What is thread-local in the object is what a group shares.
  const char *const data = bytes.data();
  for (unsigned k = 0; k < header.e_phnum; k++) {
    const auto *const segment = reinterpret_cast<const Segment *>(data + header.e_phoff) + k;
    if (segment->p_type == PT_TLS) shared_bytes = segment->p_memsz;
  }
  if (shared_bytes) dlinfo(library, RTLD_DI_TLS_MODID, &shared_module);
  const auto *const sections = reinterpret_cast<const Section *>(data + header.e_shoff);
  for (unsigned k = 0; k < header.e_shnum; k++) {
    if (sections[k].sh_type != SHT_SYMTAB) continue;
    const auto *const symbols = reinterpret_cast<const Symbol *>(data + sections[k].sh_offset);
    const char *const names = data + sections[sections[k].sh_link].sh_offset;
    for (size_t s = 0; s < sections[k].sh_size / sizeof(Symbol); s++) {
      if ((symbols[s].st_info & 15) != STT_TLS) continue;
      // A variable of the function "kernel" is called _ZZ6kernelE…
      const char *const name = names + symbols[s].st_name;
      char *in_function = nullptr;
      const size_t length = strncmp(name, "_ZZ", 3) == 0 ? strtoul(name + 3, &in_function, 10) : 0;
      const std::string function = length ? std::string(in_function, length) : "";
      shared[dlsym(library, ("tvmdml_kernel_" + function).c_str()) ? function : ""] += symbols[s].st_size;
    }
  }
}

Module::~Module() {
  if (library) dlclose(library);
}

Function &Module::function(const std::string &name) {
  std::unique_ptr<Function> &found = functions[name];
  if (!found) {
    const auto *const kernel = static_cast<const Kernel *>(dlsym(library, ("tvmdml_kernel_" + name).c_str()));
    require(kernel != nullptr, CUDA_ERROR_NOT_FOUND);
    found = std::make_unique<Function>(Function{this, kernel, name, shared[name] + (name.empty() ? 0 : shared[""])});
  }
  return *found;
}

Run launch(const Function &function, Dim groups, Dim threads, std::string parameters) {
  const int device = function.module->context->device;
  return [grid = Grid{function.kernel, function.name, std::move(parameters), groups, threads, function.module->shared_module,
                      function.module->shared_bytes},
          device] {
    const auto pointers = [&](auto visit) {
      for (unsigned k = 0; k < grid.kernel->count; k++) {
        const Parameter &parameter = grid.kernel->parameters[k];
        uintptr_t address;
        if (!parameter.pointer) continue;
        memcpy(&address, grid.parameters.data() + parameter.offset, sizeof address);
        if (!address) continue;
        if (std::string text = visit(memory().find(address)); !text.empty()) {
          char number[64];
          snprintf(number, sizeof number, "kernel %s: parameter %u (0x%zx): ", grid.name.c_str(), k, static_cast<size_t>(address));
          say(number + text);
          return false;
        }
      }
      return true;
    };
    const auto whose = [&](const Allocation *at) { return at && at->device == device ? "" : "it is no memory of the device's"; };
    if (!pointers(whose)) return int{illegal_address};
    if (const int code = run(grid)) return code;
    return pointers([&](const Allocation *at) { return at ? at->damage() : ""; }) ? int{none} : int{illegal_address};
  };
}

}  // namespace tvmdml_emulator
