#include "durable/s3_cold_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/crc32c_combine.h"

namespace unreft::durable {
namespace {

constexpr uint64_t kPartsMax = 10'000;
// After so many, the next are twice as large: a file has room for 111,000 of the first.
constexpr uint64_t kPartsBeforeGrowth = 1'000;
constexpr int kGrowthsMax = 4;

class S3ColdFile final : public ColdFile {
 public:
  S3ColdFile(S3Client& client, std::string key, uint64_t part_bytes)
      : client_(client), key_(std::move(key)), part_bytes_(part_bytes) {}

  ~S3ColdFile() override {
    // What it cannot take back now, RemoveLeftovers finds.
    if (!upload_.empty() && !is_there_) (void)client_.AbortUpload(key_, upload_);
  }

  absl::Status Append(std::span<const std::byte> bytes) override {
    if (absl::Status status = CheckUnderWay(); !status.ok()) return status;
    while (!bytes.empty()) {
      if (part_.size() == PartBytes()) {
        status_ = Flush();
        if (!status_.ok()) return status_;
      }
      const size_t count = std::min<uint64_t>(bytes.size(), PartBytes() - part_.size());
      part_.insert(part_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
      bytes_ += count;
      bytes = bytes.subspan(count);
    }
    return absl::OkStatus();
  }

  uint64_t bytes() const override { return bytes_; }

  absl::Status Finish() override {
    if (absl::Status status = CheckUnderWay(); !status.ok()) return status;
    status_ = upload_.empty() ? client_.Put(key_, part_, Crc32c(part_), writer_) : Complete();
    is_there_ = status_.ok();
    part_ = {};
    return status_;
  }

 private:
  absl::Status CheckUnderWay() const {
    if (!is_there_) return status_;
    return absl::FailedPreconditionError(
        fmt::format("'{}' is finished already", client_.Describe(key_)));
  }

  uint64_t PartBytes() const {
    return part_bytes_ << std::min<uint64_t>(parts_.size() / kPartsBeforeGrowth, kGrowthsMax);
  }

  // Writes the part that is gathered.
  absl::Status Flush() {
    if (upload_.empty()) {
      absl::StatusOr<std::string> upload = client_.BeginUpload(key_, writer_);
      if (!upload.ok()) return upload.status();
      upload_ = *std::move(upload);
    }
    if (parts_.size() == kPartsMax) {
      return absl::ResourceExhaustedError(
          fmt::format("write '{}': it has {} parts of {} bytes and more, which is the most",
                      client_.Describe(key_), kPartsMax, part_bytes_));
    }
    const uint32_t crc = Crc32c(part_);
    absl::StatusOr<S3Part> part = client_.PutPart(key_, upload_, parts_.size() + 1, part_, crc);
    if (!part.ok()) return part.status();
    crc_ = crc32c::Append(crc_, crc, crc32c::PowerOfBytes(part_.size()));
    parts_.push_back(*std::move(part));
    part_.clear();
    return absl::OkStatus();
  }

  absl::Status Complete() {
    if (absl::Status status = Flush(); !status.ok()) return status;
    return client_.CompleteUpload(key_, upload_, parts_, bytes_, crc_, writer_);
  }

  S3Client& client_;
  const std::string key_;
  const uint64_t part_bytes_;
  const std::string writer_ = client_.NewWriter();
  std::string upload_;           // empty: none is begun
  std::vector<S3Part> parts_;    // that are written
  std::vector<std::byte> part_;  // that is gathered; of an upload never empty between calls
  uint32_t crc_ = 0;             // of the parts that are written
  uint64_t bytes_ = 0;
  absl::Status status_;
  bool is_there_ = false;  // under its key
};

}  // namespace

std::unique_ptr<ColdFile> BeginS3ColdFile(S3Client& client, std::string key, uint64_t part_bytes) {
  return std::make_unique<S3ColdFile>(client, std::move(key), part_bytes);
}

}  // namespace unreft::durable
