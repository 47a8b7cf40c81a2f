// The pretended devices' memory: the process's own, each allocation between guards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tvmdml_emulator {

// What is given back to a pool stays its own, up to `kept` bytes, until it is trimmed.
struct Pool {
  int device;
  size_t used = 0, cached = 0, kept = 0, most_used = 0;
};

struct Allocation {
  uintptr_t address;
  size_t bytes;
  int device;
  Pool *pool;  // that its bytes go back to; null for none
  char *map;
  size_t mapped;

  bool holds(uintptr_t from, size_t n) const { return from >= address && n <= bytes && from - address <= bytes - n; }
  // What is wrong with the bytes around it that nothing may write; "" when they are as they were.
  std::string damage() const;
};

class Memory {
 public:
  static size_t limit();

  // The address; 0 when the device has no room.
  uintptr_t allocate(int device, size_t bytes, Pool *pool);
  void release(uintptr_t address);
  // The live allocation that an address lies in (or just behind); null when there is none.
  const Allocation *find(uintptr_t address) const;
  // The damage to every allocation of a device.
  std::string damage(int device) const;

  size_t free_bytes(int device) const;
  void trim(Pool &pool, size_t keep);
  void release_all(int device);
};

Memory &memory();

}  // namespace tvmdml_emulator
