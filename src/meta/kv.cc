#include "meta/kv.h"

#include <utility>

namespace unreft::meta {

void Get(Kv& kv, KeyRange range,
         absl::AnyInvocable<void(absl::StatusOr<std::vector<KeyValue>>)> done) {
  Txn txn;
  txn.then.push_back(GetOp{std::move(range)});
  kv.Commit(std::move(txn), [done = std::move(done)](absl::StatusOr<TxnResult> result) mutable {
    if (!result.ok()) return done(result.status());
    done(std::move(result->gets.front()));
  });
}

}  // namespace unreft::meta
