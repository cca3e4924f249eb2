#include "meta/forget_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>

namespace unreft::meta {
namespace {

using Done = absl::AnyInvocable<void(absl::StatusOr<std::vector<std::string>>)>;

// Of one that is alive. One that was refused has ended, and its word stays longer than it.
bool IsOfDaemon(const KeyValue& kept, std::string_view name) {
  return kept.lease.value != 0 && !name.starts_with("refused/");
}

void Remove(Kv& kv, const std::string& prefix, const std::vector<KeyValue>& found, Done done) {
  // A daemon that has come meanwhile has the leader's key, or is known to the one that has it.
  Txn txn;
  std::vector<std::string> removed;
  bool is_led = false;
  for (const KeyValue& kept : found) {
    removed.push_back(kept.key.substr(prefix.size()));
    is_led |= removed.back() == "leader";
    if (kept.lease.value != 0) continue;  // as many as there are daemons, and known to be there
    txn.compares.push_back(Compare::Modified(kept.key, kept.mod_revision));
  }
  if (!is_led) txn.compares.push_back(Compare::Absent(prefix + "leader"));
  txn.then.emplace_back(DeleteOp{{prefix, /*is_prefix=*/true}});
  kv.Commit(std::move(txn), [prefix, removed = std::move(removed),
                             done = std::move(done)](absl::StatusOr<TxnResult> result) mutable {
    if (!result.ok()) return done(result.status());
    if (result->succeeded) return done(std::move(removed));
    done(absl::AbortedError(fmt::format(
        "{}: its records change: a daemon of the job is at work; nothing was removed", prefix)));
  });
}

}  // namespace

void ForgetJob(Kv& kv, const std::string& job, bool although_present, Done done) {
  std::string prefix = fmt::format("unreft/{}/", job);
  KeyRange range{prefix, /*is_prefix=*/true};
  Get(kv, std::move(range),
      [&kv, job, prefix = std::move(prefix), although_present,
       done = std::move(done)](absl::StatusOr<std::vector<KeyValue>> found) mutable {
        if (!found.ok()) return done(found.status());
        if (found->empty()) return done(std::vector<std::string>{});
        std::vector<std::string> present;
        for (const KeyValue& kept : *found) {
          std::string name = kept.key.substr(prefix.size());
          if (IsOfDaemon(kept, name)) present.push_back(std::move(name));
        }
        if (!present.empty() && !although_present) {
          return done(absl::FailedPreconditionError(fmt::format(
              "job {} has not ended: {} in the meta store are of daemons that are alive, or were a "
              "moment ago; stop them (unreft down on each host), and try again",
              job, fmt::join(present, ", "))));
        }
        Remove(kv, prefix, *found, std::move(done));
      });
}

}  // namespace unreft::meta
