#include "meta/store_access.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "base/text.h"

namespace unreft::meta {
namespace {

constexpr std::string_view kUri = "unreft://job/";
constexpr size_t kKeyShownMax = 256;

// How clients ask whether the store is there: no key of a job is so.
bool IsProbe(const StoreOp& op) {
  const auto* range = std::get_if<StoreRange>(&op);
  return range != nullptr && range->span.is_one_key() && range->span.begin == std::string(1, '\0');
}

bool IsWithin(const KeySpan& span, const std::string& job) {
  const std::string prefix = fmt::format("unreft/{}/", job);
  const std::string end = fmt::format("unreft/{}0", job);  // '0' is what comes after '/'
  if (!span.begin.starts_with(prefix)) return false;
  return span.is_one_key() || (!span.has_no_end() && span.end <= end);
}

}  // namespace

StoreAccess StoreAccess::ToJobsOf(const std::vector<std::string>& uris) {
  std::vector<std::string> jobs;
  for (const std::string& uri : uris) {
    if (uri.starts_with(kUri) && uri.size() > kUri.size()) jobs.push_back(uri.substr(kUri.size()));
  }
  return StoreAccess(std::move(jobs));
}

absl::Status StoreAccess::Check(const KeySpan& span) const {
  if (!jobs_) return absl::OkStatus();
  const bool is_theirs =
      std::ranges::any_of(*jobs_, [&](const std::string& job) { return IsWithin(span, job); });
  if (is_theirs) return absl::OkStatus();
  const std::string end = span.is_one_key() ? "" : fmt::format(" to '{}'", span.end);
  return Denied(fmt::format("key '{}'{}", span.begin, end));
}

absl::Status StoreAccess::Check(const StoreTxn& txn) const {
  for (const StoreCompare& compare : txn.compares) {
    if (absl::Status status = Check(KeySpan{compare.key, ""}); !status.ok()) return status;
  }
  for (const auto* ops : {&txn.then, &txn.otherwise}) {
    for (const StoreOp& op : *ops) {
      if (IsProbe(op)) continue;
      KeySpan span;
      if (const auto* put = std::get_if<StorePut>(&op)) span.begin = put->key;
      if (const auto* range = std::get_if<StoreRange>(&op)) span = range->span;
      if (const auto* erase = std::get_if<StoreDelete>(&op)) span = erase->span;
      if (absl::Status status = Check(span); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status StoreAccess::CheckAll(const char* what) const {
  return jobs_ ? Denied(what) : absl::OkStatus();
}

absl::Status StoreAccess::Denied(const std::string& what) const {
  return absl::PermissionDeniedError(
      fmt::format("{}: the client's certificate is of [{}], whose keys begin with unreft/JOB/",
                  CleanText(what, kKeyShownMax), fmt::join(*jobs_, ", ")));
}

}  // namespace unreft::meta
