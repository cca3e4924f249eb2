// ParityServer: hands the parities of the stripe that this node aggregates on to the other members
// that are to hold them.
//
// What is encoded is kept until all of them have taken their parity of it. Who asks for what is
// gone already, since it was lost on the way or its asker began again, has it encoded once more;
// who does not ask for long is waited for no longer.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "smp/protect/guard_activity.h"
#include "smp/protect/guard_task.h"
#include "smp/protect/stripe_encoder.h"
#include "transport/transport.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class ParityServer {
 public:
  using ReadDone = absl::AnyInvocable<void(absl::StatusOr<ReadSource>)>;

  // `is_encoded`: all positions were, at an earlier time.
  ParityServer(const GuardTask& task, GuardActivity& activity, bool is_encoded);
  ~ParityServer();

  // Another member wants its parity of a position: answered when it is encoded, once more if it was
  // before.
  void OnRead(const ReadRequest& request, uint64_t bytes, ReadDone done);

  // A position was encoded for the guard.
  void OnEncoded(std::shared_ptr<const EncodedPosition> encoded);

  // Positions that are kept for those who are to take them.
  uint64_t kept() const { return fresh_.size(); }

  // `is_idle`: no position is being encoded for the guard. While that is so, what is kept waits for
  // its takers alone.
  void BePatient(bool is_idle);

  // The memory of that member is gone: nothing is kept for it.
  void DoWithout(uint32_t member);

  // Hands nothing on any more; who waits is told so.
  void Close();

 private:
  // Parities that wait to be handed on.
  struct Fresh {
    std::shared_ptr<const EncodedPosition> encoded;
    bool again = false;  // handed on before, asked for once more
    std::set<uint32_t> served;
  };
  struct Waiting {
    ReadRequest request;
    ReadDone done;
  };
  // Who holds a parity of the stripe.
  struct ParityTaker {
    uint64_t asked = 0;  // the newest position
    bool asks = true;    // or it has all, or is gone: nothing is kept for it
  };

  void EncodeAgain(uint64_t position);
  void Serve();
  bool TryServe(Waiting& waiting);
  void RefuseWaiting();
  bool IsExpected(uint64_t position, uint32_t parity, const Fresh& fresh) const;
  void LosePatience();

  const GuardTask& task_;
  GuardActivity& activity_;
  StripeEncoder encoder_;            // of what is encoded again
  std::map<uint64_t, Fresh> fresh_;  // by position
  std::vector<bool> encoded_;        // by position
  std::set<uint64_t> encoding_again_;
  std::list<Waiting> waiting_;
  std::vector<ParityTaker> takers_;  // by parity
  TimerId patience_ = TimerId::kNone;
  bool closed_ = false;
};

}  // namespace unreft::smp
