// CountingTransport: a transport that says what went through it.
//
// A decorator; it owns what it decorates. Each attempt is a call or a read of its own, so what
// retries cost is in the numbers: `failures` by code says why they were needed.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "transport/transport.h"

namespace unreft {

// Of calls of one method, or of reads, in one direction.
struct TransferCounts {
  uint64_t begun = 0;
  uint64_t done = 0;             // with ok
  uint64_t request_bytes = 0;    // of all begun
  uint64_t reply_bytes = 0;      // of all done: replies, headers
  uint64_t bulk_bytes = 0;       // of all done: what reads moved
  uint64_t bulk_bytes_lost = 0;  // what reads that failed would have moved: it is moved again
  std::map<absl::StatusCode, uint64_t> failures;

  uint64_t failed() const;
  uint64_t in_flight() const { return begun - done - failed(); }
};

struct TransportCounts {
  std::map<std::string, TransferCounts> calls;         // made, by method
  std::map<std::string, TransferCounts> calls_served;  // answered, by method
  TransferCounts reads;                                // made: bytes in
  TransferCounts reads_served;                         // answered: bytes out
};

class CountingTransport final : public Transport {
 public:
  explicit CountingTransport(std::unique_ptr<Transport> inner);
  ~CountingTransport() override;

  // In turns of the executor, like everything of a transport.
  const TransportCounts& counts() const;

  const std::string& address() const override { return inner_->address(); }
  void Call(const std::string& address, const std::string& method, std::string request,
            Duration timeout, CallDone done) override;
  TransferId Read(const std::string& address, std::string request, std::span<std::byte> into,
                  Duration timeout, ReadDone done) override;
  void Cancel(TransferId transfer) override { inner_->Cancel(transfer); }
  void ReconnectNow(const std::string& address) override { inner_->ReconnectNow(address); }
  void Serve(const std::string& method, CallHandler handler) override;
  void ServeReads(ReadHandler handler) override;

 private:
  // Shared with the answers that handlers may keep longer than the transport lives.
  const std::shared_ptr<TransportCounts> counts_;
  const std::unique_ptr<Transport> inner_;
};

}  // namespace unreft
