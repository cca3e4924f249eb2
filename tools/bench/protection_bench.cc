#include "tools/bench/protection_bench.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "base/check.h"
#include "base/crc32c.h"
#include "ec/isal_code.h"
#include "tools/bench/measure.h"

namespace unreft::bench {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
// An odd number of cache lines more than a power of two: blocks that are read side by side would
// else meet in the same sets of the caches.
constexpr size_t kStrideBytes = kBlockBytes + 67 * 64;
constexpr size_t kDataBytes = size_t{512} << 20;  // many times the caches: every block is cold
constexpr double kTarget = 0.90;

// Stripes of landed data blocks and their parities.
class Stripes {
 public:
  explicit Stripes(ec::CodeShape shape)
      : shape_(shape),
        positions_(kDataBytes / kBlockBytes / shape.k),
        memory_(
            std::make_unique_for_overwrite<std::byte[]>(positions_ * shape.n() * kStrideBytes)) {
    auto code = ec::IsalCode::Make(shape);
    UNREFT_CHECK(code.ok());
    code_ = *std::move(code);
    for (size_t at = 0; at + 8 <= positions_ * shape.n() * kStrideBytes; at += 8) {
      const uint64_t value = at * 0x9e3779b97f4a7c15;
      std::memcpy(memory_.get() + at, &value, sizeof(value));
    }
  }

  size_t data_bytes() const { return positions_ * shape_.k * kBlockBytes; }

  void CrcAndEncode() {
    for (size_t position = 0; position < positions_; ++position) {
      Crc(position, 0, shape_.k);
      Encode(position);
      Crc(position, shape_.k, shape_.n());
    }
  }
  void CrcAlone() {
    for (size_t position = 0; position < positions_; ++position) Crc(position, 0, shape_.n());
  }
  void EncodeAlone() {
    for (size_t position = 0; position < positions_; ++position) Encode(position);
  }

 private:
  std::span<std::byte> Block(size_t position, size_t chunk) const {
    return {memory_.get() + (position * shape_.n() + chunk) * kStrideBytes, kBlockBytes};
  }
  void Crc(size_t position, size_t begin, size_t end) {
    for (size_t chunk = begin; chunk < end; ++chunk) sink_ = sink_ + Crc32c(Block(position, chunk));
  }
  void Encode(size_t position) {
    std::vector<std::span<const std::byte>> data;
    std::vector<std::span<std::byte>> parity;
    for (size_t j = 0; j < shape_.k; ++j) data.push_back(Block(position, j));
    for (size_t p = 0; p < shape_.m; ++p) parity.push_back(Block(position, shape_.k + p));
    code_->Encode(data, parity);
  }

  const ec::CodeShape shape_;
  const size_t positions_;
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<ec::ErasureCode> code_;
  volatile uint32_t sink_ = 0;
};

}  // namespace

std::vector<Record> RunProtection(int repetitions) {
  std::vector<Record> records;
  for (const ec::CodeShape shape : {ec::CodeShape{2, 2}, {4, 2}, {6, 2}}) {
    Stripes stripes(shape);
    const std::vector<Seconds> seconds =
        MedianSeconds(repetitions, {[&] { stripes.CrcAndEncode(); }, [&] { stripes.CrcAlone(); },
                                    [&] { stripes.EncodeAlone(); }});
    const auto rate = [&](double s) { return static_cast<double>(stripes.data_bytes()) / s / 1e9; };
    records.push_back({.name = fmt::format("crc_and_encode_rs_{}_{}", shape.k, shape.m),
                       .value = rate(seconds[0].wall),
                       .unit = "GB/s",
                       .reference_name = "crc32c, then encode",
                       .reference = rate(seconds[1].wall + seconds[2].wall),
                       .target = kTarget});
    Print(records.back());
  }
  return records;
}

}  // namespace unreft::bench
