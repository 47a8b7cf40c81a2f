// Fibers: stacks of their own that one OS thread switches between.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "abi.hpp"

#if defined(__x86_64__) && !defined(TVMDML_EMULATOR_UCONTEXT)
#define TVMDML_EMULATOR_SWITCH 1
#else
#include <ucontext.h>
#endif

namespace tvmdml_emulator {

#ifdef TVMDML_EMULATOR_SWITCH
// Saves what a call preserves, keeps the stack pointer in *from, and goes on where `to` was kept.
extern "C" void tvmdml_emulator_switch(void **from, void *to);
__asm__(
    ".text\n.p2align 4\n.hidden tvmdml_emulator_switch\n.globl tvmdml_emulator_switch\n.type tvmdml_emulator_switch, @function\n"
    "tvmdml_emulator_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  retq\n.size tvmdml_emulator_switch, .-tvmdml_emulator_switch\n");
#endif

// Where stacks lie.
class Region {
 public:
  Region() {
    // Twice the size, so that an aligned region lies in it. Pages are there once they are written to.
    map_ = mmap(nullptr, 2 * region_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map_ == MAP_FAILED) throw std::bad_alloc();
    start_ = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(map_) + region_bytes - 1) & ~(region_bytes - 1));
  }
  ~Region() { munmap(map_, 2 * region_bytes); }
  Region(const Region &) = delete;
  Region &operator=(const Region &) = delete;

  char *stack(unsigned number) const { return start_ + (first_stack + number) * stack_bytes; }
  Here &here(unsigned number) const { return reinterpret_cast<Here *>(start_)[first_stack + number]; }

 private:
  void *map_;
  char *start_;
};

class Fiber {
 public:
  Fiber(const Region &region, unsigned number, void (*main)())
      : main_(main), stack_(region.stack(number)), here_(region.here(number)), top_(stack_bytes - number * 7 % 64 * 64) {
    mprotect(stack_, 4096, PROT_NONE);  // an overflow faults
    restart();
  }
  Fiber(const Fiber &) = delete;
  Fiber &operator=(const Fiber &) = delete;

  Here &here() const { return here_; }
  bool guards(const void *address) const { return address >= stack_ && address < stack_ + 4096; }
  // Where a call may put its frame, aligned as at a function's entry.
  uintptr_t top() const { return reinterpret_cast<uintptr_t>(stack_) + top_ - 8; }

#ifdef TVMDML_EMULATOR_SWITCH
  void restart() {  // forgets what ran on it
    auto **top = reinterpret_cast<void **>(this->top());
    *top = nullptr;
    *--top = reinterpret_cast<void *>(main_);
    sp_ = top - 6;
  }
  void enter() { tvmdml_emulator_switch(&back_, sp_); }
  void leave() { tvmdml_emulator_switch(&sp_, back_); }
  void prefetch() const {
    for (int line = 0; line < 4; line++) __builtin_prefetch(static_cast<char *>(sp_) + 64 * line);
  }

 private:
  void *sp_, *back_ = nullptr;
#else
  void restart() {
    getcontext(&sp_);
    sp_.uc_stack.ss_sp = stack_;
    sp_.uc_stack.ss_size = top_;
    sp_.uc_link = nullptr;
    makecontext(&sp_, main_, 0);
  }
  void enter() { swapcontext(&back_, &sp_); }
  void leave() { swapcontext(&sp_, &back_); }
  void prefetch() const {}

 private:
  ucontext_t sp_, back_;
#endif
  void (*main_)();
  char *stack_;
  Here &here_;
  unsigned long top_;  // not the same in all: equal distances would put all frames into a few lines of the cache
};

}  // namespace tvmdml_emulator
