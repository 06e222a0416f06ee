// Counts the bytes that torch's CPU allocator has handed out, exactly and from every thread.
//
// The resident set is no measure of a strategy: it holds freed pages, code and other libraries'
// memory, and ranks the strategies wrongly. This stands in front of torch's own allocator, keeps
// each block's size in a header before it, and adds two atomic operations to an allocation.

#include <atomic>
#include <cstdint>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <cstring>

namespace {

// torch promises 64-byte alignment of CPU tensors
constexpr size_t kHeader = 64;

std::atomic<int64_t> current{0};
std::atomic<int64_t> peak{0};

void release(void* data) {
  if (data == nullptr) {
    return;
  }
  void* block = static_cast<char*>(data) - kHeader;
  current.fetch_sub(*static_cast<int64_t*>(block), std::memory_order_relaxed);
  c10::free_cpu(block);
}

struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) {
      return {nullptr, nullptr, &release, cpu};
    }
    void* block = c10::alloc_cpu(bytes + kHeader);
    *static_cast<int64_t*>(block) = static_cast<int64_t>(bytes);
    const int64_t now = current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t seen = peak.load(std::memory_order_relaxed);
    while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
    // the data is its own context: oneDNN's kernels (GELU is one) allocate and free by address alone
    void* data = static_cast<char*>(block) + kHeader;
    return {data, data, &release, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }
};

CountingAllocator allocator;

}  // namespace

extern "C" {

void distbench_install() { c10::SetCPUAllocator(&allocator, /*priority=*/100); }
int64_t distbench_current() { return current.load(); }
int64_t distbench_peak() { return peak.load(); }
void distbench_reset_peak() { peak.store(current.load()); }
}
