// Runs the groups of a launch. Each group is run by one OS thread, each thread of the group by a fiber. A fiber runs until its
// thread waits for others (a barrier, a warp's operation), and runs thread after thread when none waits. A few groups run at once,
// on as many OS threads, so that kernels whose groups wait for one another do wait, and atomics are put to the test.
//
// TVMDML_EMULATED_WORKERS  how many groups run at once (2)
// TVMDML_EMULATED_ORDER    a seed: groups and threads run in an order made from it, not by their numbers
// TVMDML_EMULATED_TIMEOUT  seconds that a launch may take (60)
#include "grid.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "fibers.hpp"

// Where the calling thread has a module's thread-local storage. The compiler's own calls go to it too.
struct TlsIndex {
  unsigned long module, offset;
};
extern "C" void *__tls_get_addr(TlsIndex *);

namespace tvmdml_emulator {

long setting(const char *name, long otherwise) {
  const char *value = getenv(name);
  return value && *value ? strtol(value, nullptr, 10) : otherwise;
}

namespace {

using Clock = std::chrono::steady_clock;
constexpr unsigned warp_size = 32, most_threads = 1024;
constexpr unsigned long long undefined = 0xdeadbeefdeadbeef;  // what a shuffle reads from a lane that takes no part

const char *const operation_names[] = {
    "__syncwarp",        "__ballot_sync",     "__shfl_sync",         "__shfl_up_sync",    "__shfl_down_sync",
    "__shfl_xor_sync",   "__match_any_sync",  "__match_all_sync",    "__reduce_add_sync", "__reduce_min_sync",
    "__reduce_max_sync", "__reduce_min_sync", "__reduce_max_sync",   "__reduce_and_sync", "__reduce_or_sync",
    "__reduce_xor_sync", "__syncthreads",     "__syncthreads_count", "__syncthreads_and", "__syncthreads_or", "a warp's instruction",
};

struct Random {
  uint64_t state;
  uint64_t next() {  // splitmix64
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  unsigned below(unsigned n) { return static_cast<unsigned>(next() % n); }
};

// A launch while it runs.
struct Launch {
  const Grid &grid;
  uint64_t count;
  std::atomic<uint64_t> next{0};
  std::atomic<int> error{none};
  std::string what;  // written by the one that set the error
  bool shuffled = false;
  uint64_t seed = 0, stride = 1, start = 0;
  Clock::time_point deadline;

  explicit Launch(const Grid &g) : grid(g), count(uint64_t{g.groups.x} * g.groups.y * g.groups.z) {
    deadline = Clock::now() + std::chrono::seconds(setting("TVMDML_EMULATED_TIMEOUT", 60));
    const char *order = getenv("TVMDML_EMULATED_ORDER");
    shuffled = order && *order;
    if (!shuffled) return;
    static std::atomic<uint64_t> launches{0};
    Random random{strtoull(order, nullptr, 10) * 0x9e3779b97f4a7c15 + launches++};
    seed = random.next();
    start = random.next() % count;
    do stride = random.next() % count;
    while (std::gcd(stride, count) != 1);  // so that every group has its turn; gcd(0, 1) is 1
  }
  bool take(uint64_t &group) {
    const uint64_t turn = next++;
    if (turn >= count || error.load(std::memory_order_relaxed)) return false;
    group = shuffled ? static_cast<uint64_t>((static_cast<unsigned __int128>(turn) * stride + start) % count) : turn;
    return true;
  }
  void fail(int code, std::string text) {
    static std::mutex one;
    const std::lock_guard<std::mutex> hold(one);
    if (error) return;
    what = std::move(text);
    error = code;
  }
};

struct Thread {
  enum State : uint8_t { fresh, ready, in_warp, in_barrier, converging, exited };
  State state;
  Operation operation;
  int line;
  unsigned mask, argument;
  unsigned long long value, result;
  Fiber *fiber;
};

struct Warp {
  unsigned waiting, exited;
};

// A copy to shared memory that is not made yet, and the batch that it belongs to.
struct Copy {
  void *to;
  const void *from;
  unsigned bytes, there, batch;
};

class Worker;
thread_local Worker *current __attribute__((tls_model("initial-exec"))) = nullptr;

// An OS thread's part: one group at a time.
class Worker {
 public:
  static Worker &here() { return *static_cast<Worker *>(tvmdml_emulator::here().worker); }

  void work(Launch &launch) {
    Worker *const outer = current;
    current = this;
    launch_ = &launch;
    kernel_ = launch.grid.kernel;
    parameters_ = launch.grid.parameters.data();
    index(launch.grid.threads);
    uint64_t group;
    while (launch.take(group)) run_group(group);
    current = outer;
  }

  // -- What a fiber does --------------------------------------------------------------------------------------------

  void run_threads() {
    for (;;) {
      while (begin()) {
        in_kernel = true;
        kernel_->run(parameters_);
        in_kernel = false;
        end();
      }
      idle_.push_back(fiber_);
      fiber_->leave();
    }
  }

  unsigned long long warp(Operation operation, unsigned mask, unsigned long long value, unsigned argument, int line) {
    in_kernel = false;
    Thread &thread = threads_[running_];
    const unsigned lane = running_ % warp_size;
    thread = {Thread::in_warp, operation, line, mask, argument, value, 0, fiber_};
    if (!(mask >> lane & 1)) give_up(launch_failed, "does not name itself in its mask");
    const unsigned width = argument >> 8;
    if (width > warp_size || (width & (width - 1))) give_up(launch_failed, "names a width that is no power of two");
    warps_[running_ / warp_size].waiting |= 1u << lane;
    if (complete(running_)) {
      ready_.pop_back();  // this one goes on at once
      thread.state = Thread::ready;
    } else {
      wait();
    }
    in_kernel = true;
    return thread.result;
  }

  int barrier(Operation operation, int value, int line) {
    in_kernel = false;
    Thread &thread = threads_[running_];
    thread = {Thread::in_barrier, operation, line, 0, 0, 0, 0, fiber_};
    if (at_barrier_ && (operation != barrier_operation_ || line != barrier_line_)) {
      give_up(launch_failed, "is not where other threads wait: at line " + std::to_string(barrier_line_) + " in " +
                                 operation_names[static_cast<unsigned>(barrier_operation_)]);
    }
    if (!at_barrier_++) barrier_operation_ = operation, barrier_line_ = line, counted_ = 0;
    counted_ += value != 0;
    if (!open_barrier()) wait();
    else remove_from_ready(running_);
    thread.state = Thread::ready;
    in_kernel = true;
    return static_cast<int>(thread.result);
  }

  // The lanes that happen to be here together: those that have come when no thread of the group can go on otherwise.
  unsigned converged(int line) {
    in_kernel = false;
    Thread &thread = threads_[running_];
    thread = {Thread::converging, Operation::sync, line, 0, 0, 0, 0, fiber_};
    converging_++;
    wait();
    in_kernel = true;
    return static_cast<unsigned>(thread.result);
  }

  void fence() {
    if (++fences_ % 64 == 0) pause();
  }

  void pause() {
    in_kernel = false;
    sched_yield();
    if (launch_->error || late()) wait();
    in_kernel = true;
  }

  void copy(void *to, const void *from, unsigned bytes, unsigned there) {
    in_kernel = false;
    copies_[running_].push_back({to, from, bytes, there, batches_[running_]});
    in_kernel = true;
  }
  void end_copies() { batches_[running_]++; }
  void await_copies(unsigned others) {
    auto &mine = copies_[running_];
    size_t done = 0;
    for (; done < mine.size() && mine[done].batch + others < batches_[running_]; done++) {
      const Copy &one = mine[done];
      memcpy(one.to, one.from, one.there);
      memset(static_cast<char *>(one.to) + one.there, 0, one.bytes - one.there);
    }
    in_kernel = false;
    mine.erase(mine.begin(), mine.begin() + static_cast<long>(done));
    in_kernel = true;
  }

  // Ends the launch; never comes back to the fiber.
  [[noreturn]] void give_up(int code, const std::string &what) {
    in_kernel = false;
    launch_->fail(code, describe(running_) + " " + what);
    for (;;) fiber_->leave();
  }

  // -- Signals ------------------------------------------------------------------------------------------------------

  // From the handler: makes the kernel's thread go on in `faulted` rather than where it was.
  bool caught(int signal, const siginfo_t *info, ucontext_t *context) {
    if (!in_kernel) return false;
    signal_ = signal, signal_code_ = info->si_code, signal_address_ = info->si_addr;
    in_kernel = false;
#if defined(__x86_64__) && defined(__linux__)
    context->uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>(fiber_->top());
    context->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(+[] { current->faulted(); });
    return true;
#elif defined(__aarch64__) && defined(__linux__)
    context->uc_mcontext.sp = fiber_->top() & ~uintptr_t{15};
    context->uc_mcontext.pc = reinterpret_cast<uintptr_t>(+[] { current->faulted(); });
    return true;
#else
    (void)context;
    return false;
#endif
  }

  volatile bool in_kernel = false;

 private:
  Launch *launch_ = nullptr;
  const Kernel *kernel_ = nullptr;
  const char *parameters_ = nullptr;
  Region region_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber *> idle_;
  Fiber *fiber_ = nullptr;
  unsigned running_ = 0, total_ = 0, begun_ = 0, alive_ = 0, at_barrier_ = 0, converging_ = 0, counted_ = 0;
  Operation barrier_operation_{};
  int barrier_line_ = 0;
  Thread threads_[most_threads];
  Warp warps_[most_threads / warp_size];
  unsigned long long gathered_[most_threads];
  std::vector<Copy> copies_[most_threads];
  unsigned batches_[most_threads];
  uint16_t order_[most_threads];
  Dim indices_[most_threads], indexed_{0, 0, 0};  // the threads' indices in groups of that size
  std::vector<uint16_t> ready_;  // the threads that may go on
  size_t ready_from_ = 0;
  Random random_{0};
  Dim group_{};
  unsigned ticks_ = 0, fences_ = 0;
  int signal_ = 0, signal_code_ = 0;
  void *signal_address_ = nullptr;

  void index(const Dim &size) {
    if (memcmp(&size, &indexed_, sizeof size) == 0) return;
    indexed_ = size;
    Dim *next = indices_;
    for (unsigned z = 0; z < size.z; z++)
      for (unsigned y = 0; y < size.y; y++)
        for (unsigned x = 0; x < size.x; x++) *next++ = {x, y, z};
  }
  void run_group(uint64_t number);
  void schedule();

  bool begin() {
    if (begun_ == total_) return false;
    running_ = order_[begun_++];
    threads_[running_] = {Thread::ready, Operation::sync, 0, 0, 0, 0, 0, fiber_};
    copies_[running_].clear();
    batches_[running_] = 0;
    fiber_->here().thread = indices_[running_];
    return true;
  }

  void end() {
    Warp &warp = warps_[running_ / warp_size];
    threads_[running_].state = Thread::exited;
    warp.exited |= 1u << running_ % warp_size;
    alive_--;
    const unsigned first = running_ / warp_size * warp_size;
    for (unsigned waiting = warp.waiting; waiting; waiting &= waiting - 1) {
      const unsigned lane = static_cast<unsigned>(__builtin_ctz(waiting));
      if (warp.waiting >> lane & 1) complete(first + lane);
    }
    open_barrier();
  }

  void wait() {
    Fiber *const mine = fiber_;
    const unsigned self = running_;
    mine->leave();
    fiber_ = mine;
    running_ = self;
  }

  void make_ready(unsigned thread) {
    threads_[thread].state = Thread::ready;
    ready_.push_back(static_cast<uint16_t>(thread));
  }
  void remove_from_ready(unsigned thread) {
    ready_.erase(std::find(ready_.begin() + static_cast<long>(ready_from_), ready_.end(), thread));
  }

  bool open_barrier() {
    if (!at_barrier_ || at_barrier_ != alive_) return false;
    const unsigned all = alive_, count = counted_;
    unsigned long long result = 0;
    if (barrier_operation_ == Operation::barrier_count) result = count;
    if (barrier_operation_ == Operation::barrier_and) result = count == all;
    if (barrier_operation_ == Operation::barrier_or) result = count != 0;
    for (unsigned k = 0; k < total_; k++) {
      Thread &thread = threads_[order_[k]];
      if (thread.state != Thread::in_barrier) continue;
      thread.result = result;
      make_ready(order_[k]);
    }
    at_barrier_ = 0;
    if (launch_->shuffled && random_.below(8) == 0) sched_yield();
    return true;
  }

  // Whether every lane that the thread waits for has come, to the same operation. If so they all have their results and may go on,
  // the thread itself last.
  bool complete(unsigned index) {
    Warp &warp = warps_[index / warp_size];
    const Thread &thread = threads_[index];
    const unsigned first = index / warp_size * warp_size, needed = thread.mask & ~warp.exited;
    if (needed & ~warp.waiting) return false;
    for (unsigned left = needed; left; left &= left - 1) {
      const Thread &other = threads_[first + static_cast<unsigned>(__builtin_ctz(left))];
      if (other.operation != thread.operation || other.mask != thread.mask) return false;
    }
    for (unsigned left = needed; left; left &= left - 1) {
      const unsigned lane = static_cast<unsigned>(__builtin_ctz(left));
      gathered_[first + lane] = threads_[first + lane].value;
      threads_[first + lane].result = result(first, lane, needed);
    }
    warp.waiting &= ~needed;
    for (unsigned left = needed; left; left &= left - 1) {
      const unsigned other = first + static_cast<unsigned>(__builtin_ctz(left));
      if (other != index) make_ready(other);
    }
    make_ready(index);
    return true;
  }

  unsigned long long result(unsigned first, unsigned lane, unsigned mask) const {
    const Thread *const lanes = threads_ + first;
    const Thread &self = lanes[lane];
    const unsigned width = self.argument >> 8, argument = self.argument & 31, segment = width ? lane & ~(width - 1) : 0;
    const auto of = [&](unsigned source) { return mask >> source & 1 ? lanes[source].value : undefined; };
    const auto fold = [&](auto start, auto combine) {
      for (unsigned left = mask; left; left &= left - 1)
        start = combine(start, static_cast<decltype(start)>(lanes[__builtin_ctz(left)].value));
      return static_cast<unsigned long long>(start);
    };
    switch (self.operation) {
      case Operation::ballot: {
        unsigned votes = 0;
        for (unsigned left = mask; left; left &= left - 1)
          if (lanes[__builtin_ctz(left)].value) votes |= left & -left;
        return votes;
      }
      case Operation::shuffle: return of(segment | (argument & (width - 1)));
      case Operation::shuffle_up: return lane < segment + argument ? self.value : of(lane - argument);
      case Operation::shuffle_down: return lane + argument >= segment + width ? self.value : of(lane + argument);
      case Operation::shuffle_xor: return (lane ^ argument) >= segment + width ? self.value : of(lane ^ argument);
      case Operation::match_any:
      case Operation::match_all: {
        unsigned same = 0;
        for (unsigned left = mask; left; left &= left - 1)
          if (lanes[__builtin_ctz(left)].value == self.value) same |= left & -left;
        return self.operation == Operation::match_any || same == mask ? same : 0;
      }
      case Operation::add: return fold(0u, [](unsigned a, unsigned b) { return a + b; });
      case Operation::least_signed: return fold(INT32_MAX, [](int a, int b) { return std::min(a, b); });
      case Operation::most_signed: return fold(INT32_MIN, [](int a, int b) { return std::max(a, b); });
      case Operation::least_unsigned: return fold(UINT32_MAX, [](unsigned a, unsigned b) { return std::min(a, b); });
      case Operation::most_unsigned: return fold(0u, [](unsigned a, unsigned b) { return std::max(a, b); });
      case Operation::all_bits: return fold(UINT32_MAX, [](unsigned a, unsigned b) { return a & b; });
      case Operation::any_bits: return fold(0u, [](unsigned a, unsigned b) { return a | b; });
      case Operation::odd_bits: return fold(0u, [](unsigned a, unsigned b) { return a ^ b; });
      case Operation::gather: return reinterpret_cast<uintptr_t>(gathered_ + first);
      default: return 0;
    }
  }

  // Nothing can go on but lanes that ask who is with them: answers those of the first one's warp and line.
  void converge() {
    const auto asks = [](const Thread &thread) { return thread.state == Thread::converging; };
    const auto index = static_cast<unsigned>(std::find_if(threads_, threads_ + total_, asks) - threads_);
    const unsigned first = index / warp_size * warp_size, last = std::min(first + warp_size, total_);
    const int line = threads_[index].line;
    unsigned together = 0;
    for (unsigned k = first; k < last; k++) together |= asks(threads_[k]) && threads_[k].line == line ? 1u << (k - first) : 0;
    for (unsigned k = first; k < last; k++) {
      if (!(together >> (k - first) & 1)) continue;
      threads_[k].result = together;
      converging_--;
      make_ready(k);
    }
  }

  bool late() {
    if (Clock::now() < launch_->deadline) return false;
    launch_->fail(timeout, "ran for longer than TVMDML_EMULATED_TIMEOUT; last seen: " + describe(running_));
    return true;
  }

  std::string describe(unsigned index) const {
    const Thread &thread = threads_[index];
    const Dim &at = indices_[index];
    char text[256];
    int n = snprintf(text, sizeof text, "thread (%u, %u, %u) of group (%u, %u, %u)", at.x, at.y, at.z, group_.x, group_.y,
                     group_.z);
    const auto room = [&] { return sizeof text - static_cast<size_t>(n); };
    if (thread.state == Thread::in_barrier || thread.state == Thread::in_warp)
      n += snprintf(text + n, room(), ", in %s at line %d", operation_names[static_cast<unsigned>(thread.operation)], thread.line);
    if (thread.state == Thread::in_warp) n += snprintf(text + n, room(), " with mask 0x%08x,", thread.mask);
    return text;
  }

  // Every thread waits for one that does not come.
  void stuck() {
    std::string text = "threads wait for one another for ever:";
    unsigned shown = 0;
    Operation operation{};
    int line = -1;
    for (unsigned k = 0; k < total_ && shown < 4; k++) {
      const Thread &thread = threads_[k];
      if (thread.state == Thread::exited || (thread.operation == operation && thread.line == line)) continue;
      operation = thread.operation, line = thread.line, shown++;
      text += "\n    " + describe(k);
    }
    launch_->fail(launch_failed, text);
  }

  [[noreturn]] void faulted() {
    char where[64];
    snprintf(where, sizeof where, " at address %p", signal_address_);
    if (signal_ == SIGSEGV && signal_code_ <= 0) give_up(timeout, "ran for longer than TVMDML_EMULATED_TIMEOUT");
    if (fiber_->guards(signal_address_)) give_up(stack_error, "overflowed its stack");
    if (signal_ == SIGFPE) give_up(launch_failed, "divided by zero, or the least integer by -1");
    if (signal_ == SIGILL) give_up(illegal_instruction, "came to a trap");
    give_up(illegal_address, std::string("read or wrote memory that is not there,") + where);
  }
};

void Worker::run_group(uint64_t number) {
  const Grid &grid = launch_->grid;
  total_ = alive_ = grid.threads.x * grid.threads.y * grid.threads.z;
  begun_ = at_barrier_ = converging_ = 0;
  ready_.clear();
  ready_from_ = 0;
  group_ = {static_cast<unsigned>(number % grid.groups.x), static_cast<unsigned>(number / grid.groups.x % grid.groups.y),
            static_cast<unsigned>(number / grid.groups.x / grid.groups.y)};
  const unsigned warps = (total_ + warp_size - 1) / warp_size;
  for (unsigned k = 0; k < warps; k++) warps_[k] = {0, 0};
  if (total_ % warp_size) warps_[warps - 1].exited = ~0u << total_ % warp_size;
  for (unsigned k = 0; k < total_; k++) {
    order_[k] = static_cast<uint16_t>(k);
    threads_[k].state = Thread::fresh;
  }
  if (launch_->shuffled) {
    random_ = {launch_->seed ^ number};
    for (unsigned k = total_; k > 1; k--) std::swap(order_[k - 1], order_[random_.below(k)]);
  }
  if (grid.shared_bytes) {
    TlsIndex index{grid.shared_module, 0};
    memset(__tls_get_addr(&index), 0xff, grid.shared_bytes);
  }
  schedule();
}

void Worker::schedule() {
  while (alive_) {
    if (launch_->error.load(std::memory_order_relaxed) || (++ticks_ % 4096 == 0 && late())) break;
    if (ready_from_ < ready_.size()) {
      if (launch_->shuffled) {
        const auto choice = static_cast<unsigned>(ready_.size() - ready_from_);
        std::swap(ready_[ready_from_], ready_[ready_from_ + random_.below(choice)]);
      }
      running_ = ready_[ready_from_++];
      if (ready_from_ + 8 < ready_.size()) {  // the stacks are more than the caches hold
        __builtin_prefetch(threads_[ready_[ready_from_ + 8]].fiber);
        threads_[ready_[ready_from_ + 4]].fiber->prefetch();
      }
      if (ready_from_ == ready_.size() || ready_from_ > 4 * most_threads) {
        ready_.erase(ready_.begin(), ready_.begin() + static_cast<long>(ready_from_));
        ready_from_ = 0;
      }
      fiber_ = threads_[running_].fiber;
    } else if (begun_ < total_) {
      if (idle_.empty()) {
        fibers_.push_back(std::make_unique<Fiber>(region_, static_cast<unsigned>(fibers_.size()), +[] { current->run_threads(); }));
        idle_.push_back(fibers_.back().get());
      }
      fiber_ = idle_.back();
      idle_.pop_back();
      Here &here = fiber_->here();
      static const Services services = {
          [](Operation o, unsigned m, unsigned long long v, unsigned a, int l) { return Worker::here().warp(o, m, v, a, l); },
          [](Operation o, int v, int l) { return Worker::here().barrier(o, v, l); },
          [](int l) { return Worker::here().converged(l); },
          [] { Worker::here().fence(); },
          [] { Worker::here().pause(); },
          [](void *to, const void *from, unsigned b, unsigned there) { Worker::here().copy(to, from, b, there); },
          [] { Worker::here().end_copies(); },
          [](unsigned others) { Worker::here().await_copies(others); },
          [](int code, const char *what, int l) { Worker::here().give_up(code, what + (" at line " + std::to_string(l))); },
      };
      here.group = group_, here.threads = launch_->grid.threads, here.groups = launch_->grid.groups;
      here.services = &services, here.worker = this;
    } else if (converging_) {
      converge();
      continue;
    } else {
      stuck();
      break;
    }
    fiber_->enter();
  }
  if (!alive_) return;
  idle_.clear();  // what the fibers were at is given up
  for (auto &fiber : fibers_) fiber->restart(), idle_.push_back(fiber.get());
}

// -- Signals ----------------------------------------------------------------------------------------------------------

constexpr int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction others[NSIG];

void handle(int signal, siginfo_t *info, void *context) {
  if (current && current->caught(signal, info, static_cast<ucontext_t *>(context))) return;
  if (signal == SIGSEGV && info->si_code <= 0) return;  // the watch's, which came too late
  // Whose it is: it comes again. Two copies of this library could hand it to each other for ever.
  static std::atomic<int> handed{0};
  struct sigaction otherwise = {};
  otherwise.sa_handler = SIG_DFL;
  sigaction(signal, ++handed < 16 ? &others[signal] : &otherwise, nullptr);
}

// A fault in a kernel is told from one of the process's own, whose handler stays in charge of those.
void catch_signals() {
  for (const int signal : signals) {
    struct sigaction action = {}, now = {};
    sigaction(signal, nullptr, &now);
    if (now.sa_sigaction == handle) continue;
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    others[signal] = now;
    sigaction(signal, &action, nullptr);
  }
}

// The handler needs a stack of its own: the fiber's may be what overflowed.
struct SignalStack {
  stack_t before{};
  std::unique_ptr<char[]> memory;
  SignalStack() {
    sigaltstack(nullptr, &before);
    if (!(before.ss_flags & SS_DISABLE)) return;
    memory = std::make_unique<char[]>(size);
    stack_t mine = {};
    mine.ss_sp = memory.get();
    mine.ss_size = size;
    sigaltstack(&mine, nullptr);
  }
  ~SignalStack() {
    if (memory) sigaltstack(&before, nullptr);
  }
  static constexpr size_t size = 64 << 10;
};

// -- The OS threads ---------------------------------------------------------------------------------------------------

Worker &my_worker() {
  static thread_local std::unique_ptr<Worker> mine;
  if (!mine) mine = std::make_unique<Worker>();
  return *mine;
}

class Pool {
 public:
  void run(Launch &launch) {
    const auto workers = static_cast<unsigned>(std::max(1l, setting("TVMDML_EMULATED_WORKERS", 2)));
    std::unique_lock<std::mutex> hold(lock_);
    launch_ = &launch;
    wanted_ = static_cast<unsigned>(std::min<uint64_t>(workers, launch.count)) - 1;
    while (threads_ < wanted_) {
      threads_++;
      std::thread([this] { help(); }).detach();
    }
    if (!watched_) {
      watched_ = true;
      std::thread([this] { watch(); }).detach();
    }
    caller_ = pthread_self();
    hold.unlock();
    if (wanted_) come_.notify_all();
    {
      const SignalStack stack;
      my_worker().work(launch);
    }
    hold.lock();
    wanted_ = 0;
    done_.wait(hold, [&] { return !busy_; });
    launch_ = nullptr;
  }

 private:
  std::mutex lock_;
  std::condition_variable come_, done_;
  Launch *launch_ = nullptr;
  unsigned threads_ = 0, wanted_ = 0, busy_ = 0;
  bool watched_ = false;
  pthread_t caller_{};
  std::vector<pthread_t> helpers_;

  void help() {
    const SignalStack stack;
    std::unique_lock<std::mutex> hold(lock_);
    helpers_.push_back(pthread_self());
    for (;;) {
      come_.wait(hold, [&] { return wanted_ > 0; });
      wanted_--, busy_++;
      Launch &launch = *launch_;
      hold.unlock();
      my_worker().work(launch);
      hold.lock();
      if (!--busy_) done_.notify_one();
    }
  }

  // Ends a launch that is late and whose threads wait for nothing the scheduler knows of, such as a loop around a volatile read.
  void watch() {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      const std::lock_guard<std::mutex> hold(lock_);
      if (!launch_ || Clock::now() < launch_->deadline + std::chrono::milliseconds(500)) continue;
      pthread_kill(caller_, SIGSEGV);
      for (const pthread_t helper : helpers_) pthread_kill(helper, SIGSEGV);
    }
  }
};

}  // namespace

int run(const Grid &grid) {
  static Pool &pool = *new Pool;  // never destroyed: its threads outlive main
  catch_signals();
  Launch launch(grid);
  pool.run(launch);
  if (launch.error) fprintf(stderr, "tvmdml's CUDA emulator: kernel %s: %s\n", grid.name.c_str(), launch.what.c_str());
  return launch.error;
}

}  // namespace tvmdml_emulator
