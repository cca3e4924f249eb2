#include "smp/node/cold_storage.h"

#include <chrono>
#include <utility>

#include "base/random.h"
#include "durable/cold_place.h"
#include "durable/posix_cold_store.h"
#include "durable/s3_cold_store.h"

namespace unreft::smp {

absl::StatusOr<std::unique_ptr<durable::ColdStore>> OpenColdStorage(const std::string& directory,
                                                                    ColdStorageOptions options) {
  if (!durable::IsS3Place(directory)) {
    return durable::PosixColdStore::Open(directory, {.writes = options.writes});
  }
  const absl::StatusOr<durable::S3Place> place = durable::ParseS3Place(directory);
  if (!place.ok()) return place.status();
  durable::S3ColdOptions s3;
  s3.pace.pause = std::move(options.pause);
  s3.now = std::chrono::system_clock::now;
  s3.is_ending = std::move(options.is_ending);
  return durable::S3ColdStore::Open(*place, std::move(s3), Random::FromEntropy());
}

}  // namespace unreft::smp
