// StoreAccess: which keys a client of the embedded store may read, write and watch. Pure.
#pragma once

#include <absl/status/status.h>

#include <optional>
#include <string>
#include <vector>

#include "meta/store_types.h"

namespace unreft::meta {

class StoreAccess {
 public:
  // All keys: without TLS nothing tells clients apart.
  static StoreAccess ToAll() { return StoreAccess(std::nullopt); }
  // Those below "unreft/JOB/" of the jobs that these URIs of a certificate name, "unreft://job/JOB".
  static StoreAccess ToJobsOf(const std::vector<std::string>& uris);

  // PermissionDenied names the first key that is not among them, and the jobs.
  absl::Status Check(const KeySpan& span) const;
  absl::Status Check(const StoreTxn& txn) const;
  // What concerns the keys of all.
  absl::Status CheckAll(const char* what) const;

 private:
  explicit StoreAccess(std::optional<std::vector<std::string>> jobs) : jobs_(std::move(jobs)) {}
  absl::Status Denied(const std::string& what) const;

  std::optional<std::vector<std::string>> jobs_;  // none: all
};

}  // namespace unreft::meta
