// The collectives. All stage through the group's segment in chunks: staged data stays in the caches, so memory sees
// one read and one write of every rank's tensor, which is the minimum for private results. Regions need no staging.
//
// One epoch per piece (rules G2 and G3 of control.hpp): write into the half of the next epoch, publish it, wait for
// all, read. Order of summation: rank 0, 1, 2, ... for every element, so all ranks end with the same bits, and runs
// repeat.
#include <algorithm>
#include <cstring>

#include "call.hpp"
#include "cpu/copy.hpp"
#include "error.hpp"

namespace softs::collective {
namespace {

// Mixes every bit of two words into one. Source: the finalizer of MurmurHash3 (public domain), chained.
std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
    hash ^= value + 0x9E3779B97F4A7C15 + (hash << 6) + (hash >> 2);
    hash ^= hash >> 33;
    hash *= 0xFF51AFD7ED558CCD;
    hash ^= hash >> 33;
    return hash;
}

std::uint64_t mix(std::uint64_t hash, const Reduction& reduction) {
    std::uint64_t scale = 0;
    std::memcpy(&scale, &reduction.scale, sizeof scale);
    return mix(mix(hash, static_cast<std::uint64_t>(reduction.dtype) << 8 | static_cast<std::uint64_t>(reduction.op)), scale);
}

// Iterates over pieces as if they were contiguous.
class Walk {
  public:
    Walk(std::span<const Piece> pieces, std::size_t item_bytes) : pieces_(pieces), item_bytes_(item_bytes) {}

    void read(std::byte* to, std::size_t bytes) {
        step(bytes, [&](std::byte* own, std::size_t length) {
            std::memcpy(to, own, length);
            to += length;
        });
    }

    void write(const std::byte* from, std::size_t bytes) {
        step(bytes, [&](std::byte* own, std::size_t length) {
            std::memcpy(own, from, length);
            from += length;
        });
    }

    // The next bytes, if they are in one piece; does not advance.
    std::byte* together(std::size_t bytes) {
        skip_finished();
        return bytes != 0 && length() - at_ >= bytes ? pieces_[piece_].data + at_ : nullptr;
    }

    void skip(std::size_t bytes) {
        step(bytes, [](std::byte*, std::size_t) {});
    }

  private:
    template <class Use>
    void step(std::size_t bytes, Use use) {
        while (bytes != 0) {
            skip_finished();
            const std::size_t part = std::min(bytes, length() - at_);
            use(pieces_[piece_].data + at_, part);
            at_ += part;
            bytes -= part;
        }
    }

    std::size_t length() const { return pieces_[piece_].count * item_bytes_; }

    void skip_finished() {
        while (piece_ + 1 < pieces_.size() && at_ == length()) {
            ++piece_;
            at_ = 0;
        }
    }

    std::span<const Piece> pieces_;
    std::size_t item_bytes_;
    std::size_t piece_ = 0;
    std::size_t at_ = 0;
};

// How much of a whole is done in the step that begins at `done`.
std::size_t part_of(std::size_t whole, std::size_t done, std::size_t step) {
    return std::min(step, whole - std::min(done, whole));
}

void check(const Reduction& reduction) {
    if (!reduce_supported(reduction.dtype, reduction.dtype, reduction.op)) {
        throw Error(Failure::config, "there is no mean of bool; use min (and) or max (or)");
    }
}

}  // namespace

bool Group::barrier(std::uint64_t tag) {
    const Call call(*this, Kind::barrier, 0);
    return begin(Kind::barrier, tag);
}

bool Group::all_reduce(std::span<const Piece> pieces, const Reduction& reduction, std::uint64_t tag, bool takes, SharedTensor* shared) {
    check(reduction);
    const std::size_t item = item_bytes(reduction.dtype);
    std::size_t count = 0;
    for (const Piece& piece : pieces) count += piece.count;
    const Call call(*this, Kind::all_reduce, count * item);
    const std::uint64_t hash = mix(mix(mix(tag, count), reduction), mix(schedule_.one_shot_bytes, schedule_.chunk_bytes));
    if (count == 0) return begin(Kind::all_reduce, hash);
    const std::uint32_t word = shared != nullptr ? shared->word(pieces.front().data, count * item) : SharedTensor::staged;
    try {
        return reduce_agreed(pieces, count, reduction, hash, takes, shared, word);
    } catch (const Error& error) {
        if (word < SharedTensor::moved || shared->withdraw()) throw;
        throw Error(error.failure, std::string(error.what()) + "; there is no other memory for a tensor to which ranks may yet write");
    } catch (...) {
        if (word >= SharedTensor::moved) (void)shared->withdraw();
        throw;
    }
}

bool Group::reduce_agreed(std::span<const Piece> pieces, std::size_t count, const Reduction& reduction, std::uint64_t hash, bool takes,
                          SharedTensor* shared, std::uint32_t word) {
    const std::size_t item = item_bytes(reduction.dtype);
    std::array<const void*, max_ranks> inputs{};
    ReduceArgs args{.in = reduction.dtype,
                    .out = reduction.dtype,
                    .op = reduction.op,
                    .scale = reduction.scale,
                    .inputs = inputs.data(),
                    .n_inputs = size(),
                    .outputs = nullptr,
                    .n_outputs = 1,
                    .count = count,
                    .stream_stores = false};
    Walk in(pieces, item);
    Walk out(pieces, item);

    // Each rank reduces its slice of a chunk in the areas of all ranks, and copies the rest from its own area. While
    // others still reduce, it stages the next chunk: one wait per chunk. The own slice need not be staged, if it is in
    // one piece.
    struct Slice {
        std::size_t begin, end, total;  // bytes of a chunk
    };
    const auto own_slice = [&](std::size_t chunk) {
        return Slice{slice_begin(chunk, item, rank_, size()) * item, slice_begin(chunk, item, rank_ + 1, size()) * item, chunk * item};
    };
    const auto bring = [&](std::size_t chunk, std::byte* to) {
        const Slice own = own_slice(chunk);
        const std::byte* const from = takes ? in.together(own.total) : nullptr;
        if (from == nullptr) return in.read(to, own.total);
        std::memcpy(to, from, own.begin);
        std::memcpy(to + own.end, from + own.end, own.total - own.end);
        in.skip(own.total);
    };
    const auto take = [&](std::size_t chunk, const std::byte* from) {
        if (!takes) return;
        const Slice own = own_slice(chunk);
        std::byte* const to = out.together(own.total);
        if (to == nullptr) return out.write(from, own.total);
        std::memcpy(to, from, own.begin);
        std::memcpy(to + own.end, from + own.end, own.total - own.end);
        out.skip(own.total);
    };
    const std::size_t per_chunk = schedule_.chunk_bytes / item;
    std::size_t next = std::min(count, per_chunk);
    std::uint32_t epoch = next_epoch();
    const bool is_one_shot = count * item <= schedule_.one_shot_bytes;
    const auto stage = [&] { is_one_shot ? in.read(brought(rank_, epoch), count * item) : bring(next, area(rank_, epoch)); };
    // A tensor that may be reduced in place is staged only once it is known that it is not.
    if (word < SharedTensor::moved) stage();
    if (word == SharedTensor::moved) make_offer(shared->offer());
    if (!begin(Kind::all_reduce, hash, word)) return false;
    const auto [lowest, highest] = shared_words();
    if (shared != nullptr) shared->learn(lowest, highest);
    if (highest >= SharedTensor::moved) {
        bool is_mapped = lowest == highest && lowest >= SharedTensor::first_number;
        if (!is_mapped) {
            if (word >= SharedTensor::moved) stage();
            is_mapped = map_all(shared, lowest == SharedTensor::moved && highest == SharedTensor::moved);
        }
        if (is_mapped) {
            ++n_in_place_;
            reduce_parts(shared->parts(), nullptr, count, reduction, false);
            return true;
        }
    }

    if (is_one_shot) {
        if (!takes) return true;
        for (int rank = 0; rank < size(); ++rank) inputs[static_cast<std::size_t>(rank)] = brought(rank, epoch);
        std::byte* const together = out.together(count * item);
        if (together == nullptr) scratch_.resize(std::max(scratch_.size(), count * item));
        // Not what it has staged, which another core then holds too.
        if (together != nullptr) inputs[static_cast<std::size_t>(rank_)] = together;
        void* output = together != nullptr ? together : scratch_.data();
        args.outputs = &output;
        reduce(args);
        if (together == nullptr) out.write(scratch_.data(), count * item);
        return true;
    }

    std::array<void*, max_ranks> outputs{};
    args.outputs = outputs.data();
    args.n_outputs = size();
    for (std::size_t done = 0; done < count;) {
        const std::size_t chunk = next;
        const Slice own = own_slice(chunk);
        for (int rank = 0; rank < size(); ++rank) {
            inputs[static_cast<std::size_t>(rank)] = outputs[static_cast<std::size_t>(rank)] = area(rank, epoch) + own.begin;
        }
        if (std::byte* const direct = takes ? out.together(own.total) : nullptr; direct != nullptr) {
            inputs[static_cast<std::size_t>(rank_)] = outputs[static_cast<std::size_t>(rank_)] = direct + own.begin;
        }
        args.count = (own.end - own.begin) / item;
        if (args.count != 0) reduce(args);
        next = std::min(count - done - chunk, per_chunk);
        bring(next, area(rank_, next_epoch()));
        publish();
        await_all();
        take(chunk, area(rank_, epoch));
        done += chunk;
        ++epoch;
    }
    publish();  // by G3
    return true;
}

bool Group::reduce_scatter(std::span<const Piece> in, std::byte* out, const Reduction& reduction, std::uint64_t tag) {
    check(reduction);
    const std::size_t item = item_bytes(reduction.dtype);
    std::uint64_t hash = mix(mix(tag, reduction), schedule_.chunk_bytes);
    std::size_t count = 0;
    std::size_t longest = 0;
    for (const Piece& piece : in) {
        count += piece.count;
        longest = std::max(longest, piece.count);
        hash = mix(hash, count);
    }
    const Call call(*this, Kind::reduce_scatter, count * item);

    // A part of every piece per epoch; each rank's own one stays in place.
    const std::size_t step =
        std::max<std::size_t>(1, schedule_.chunk_bytes / static_cast<std::size_t>(size()) / line_bytes * line_bytes / item);
    std::array<const void*, max_ranks> inputs{};
    for (std::size_t done = 0; done == 0 || done < longest; done += step) {
        const auto part = [&](int rank) { return part_of(in[static_cast<std::size_t>(rank)].count, done, step); };
        const auto from = [&](int rank) { return in[static_cast<std::size_t>(rank)].data + done * item; };
        const std::uint32_t epoch = next_epoch();
        for (int rank = 0; rank < size(); ++rank) {
            if (rank == rank_ || part(rank) == 0) continue;
            std::memcpy(given(rank_, rank, epoch, step * item), from(rank), part(rank) * item);
        }
        if (done == 0) {
            if (!begin(Kind::reduce_scatter, hash)) return false;
        } else {
            publish();
            await_all();
        }
        if (part(rank_) == 0) continue;
        for (int rank = 0; rank < size(); ++rank) {
            inputs[static_cast<std::size_t>(rank)] = given(rank, rank_, epoch, step * item);
        }
        inputs[static_cast<std::size_t>(rank_)] = from(rank_);
        void* output = out + done * item;
        reduce({.in = reduction.dtype,
                .out = reduction.dtype,
                .op = reduction.op,
                .scale = reduction.scale,
                .inputs = inputs.data(),
                .n_inputs = size(),
                .outputs = &output,
                .n_outputs = 1,
                .count = part(rank_),
                .stream_stores = false});
    }
    return true;
}

bool Group::all_gather(const std::byte* in, std::span<const Piece> out, std::uint64_t tag) {
    std::uint64_t hash = mix(tag, schedule_.chunk_bytes);
    std::size_t bytes = 0;
    std::size_t longest = 0;
    for (const Piece& piece : out) {
        bytes += piece.count;
        longest = std::max(longest, piece.count);
        hash = mix(hash, bytes);
    }
    const Call call(*this, Kind::all_gather, bytes);
    const std::size_t step = schedule_.chunk_bytes;
    for (std::size_t done = 0; done == 0 || done < longest; done += step) {
        const auto part = [&](int rank) { return part_of(out[static_cast<std::size_t>(rank)].count, done, step); };
        const std::uint32_t epoch = next_epoch();
        if (part(rank_) != 0) std::memcpy(brought(rank_, epoch), in + done, part(rank_));
        if (done == 0) {
            if (!begin(Kind::all_gather, hash)) return false;
        } else {
            publish();
            await_all();
        }
        for (int rank = 0; rank < size(); ++rank) {
            const Piece& taken = out[static_cast<std::size_t>(rank)];
            if (taken.data == nullptr || part(rank) == 0) continue;
            const std::byte* const from = rank == rank_ ? in + done : brought(rank, epoch);
            if (from != taken.data + done) copy(taken.data + done, from, part(rank), bytes >= stream_from_bytes);
        }
    }
    return true;
}

void Group::check_root(int root) const {
    if (root < 0 || root >= size()) {
        throw Error(Failure::config, "root is " + std::to_string(root) + " in a group of " + std::to_string(size()));
    }
}

bool Group::confirm() {
    const std::lock_guard guard(mutex_);
    if (!is_unconfirmed_) return true;
    check_usable();
    is_unconfirmed_ = false;
    return agreed();
}

bool Group::broadcast(std::byte* data, std::size_t bytes, int root, std::uint64_t tag, bool eager) {
    check_root(root);
    const Call call(*this, Kind::broadcast, bytes);
    const std::uint64_t hash = mix(mix(mix(tag, bytes), static_cast<std::uint64_t>(root)), schedule_.chunk_bytes);
    for (std::size_t done = 0; done == 0 || done < bytes; done += schedule_.chunk_bytes) {
        const std::size_t part = std::min(schedule_.chunk_bytes, bytes - done);
        const std::uint32_t epoch = next_epoch();
        if (rank_ == root && part != 0) std::memcpy(area(root, epoch), data + done, part);
        if (rank_ == root && eager && part == bytes) {
            announce(Kind::broadcast, hash);
            is_unconfirmed_ = true;
            return true;
        }
        if (done == 0) {
            if (!begin(Kind::broadcast, hash)) return false;
        } else {
            publish();
            await_all();
        }
        if (rank_ != root && part != 0) std::memcpy(data + done, area(root, epoch), part);
    }
    return true;
}

bool Group::scatter(std::span<const Piece> in, const Piece& out, int root, std::uint64_t tag) {
    check_root(root);
    const std::size_t bytes = out.count;
    const Call call(*this, Kind::scatter, bytes);
    const std::uint64_t hash = mix(mix(mix(tag, bytes), static_cast<std::uint64_t>(root)), schedule_.chunk_bytes);
    const std::size_t step = std::max<std::size_t>(1, schedule_.chunk_bytes / static_cast<std::size_t>(size()));
    for (std::size_t done = 0; done == 0 || done < bytes; done += step) {
        const std::size_t part = part_of(bytes, done, step);
        const std::uint32_t epoch = next_epoch();
        const auto staged = [&](int rank) { return area(root, epoch) + static_cast<std::size_t>(rank) * step; };
        for (int rank = 0; rank_ == root && rank < size(); ++rank) {
            if (part != 0) std::memcpy(staged(rank), in[static_cast<std::size_t>(rank)].data + done, part);
        }
        if (done == 0) {
            if (!begin(Kind::scatter, hash)) return false;
        } else {
            publish();
            await_all();
        }
        if (part != 0) std::memcpy(out.data + done, staged(rank_), part);
    }
    return true;
}

bool Group::all_to_all(std::span<const Piece> in, std::span<const Piece> out, std::uint64_t tag) {
    const auto n = static_cast<std::size_t>(size());
    const auto own = static_cast<std::size_t>(rank_);
    // The first part for each rank follows the numbers of bytes for all and from all, so that each can check the whole
    // matrix, and all come to the same result.
    std::vector<std::uint64_t> stated(2 * n);
    std::size_t bytes = 0;
    for (std::size_t rank = 0; rank < n; ++rank) {
        bytes += stated[rank] = in[rank].count;
        stated[n + rank] = out[rank].count;
    }
    const Call call(*this, Kind::all_to_all, bytes);
    const std::size_t head = (stated.size() * sizeof(std::uint64_t) + line_bytes - 1) / line_bytes * line_bytes;
    if (slot_bytes() < head + n * line_bytes) throw Error(Failure::config, "staging_bytes are too few for an all_to_all");
    const std::size_t step = std::max(line_bytes, std::min(schedule_.chunk_bytes, slot_bytes() - head) / n / line_bytes * line_bytes);
    std::size_t longest = 0;
    for (std::size_t done = 0; done == 0 || done < longest; done += step) {
        const std::uint32_t epoch = next_epoch();
        const auto staged = [&](std::size_t from, std::size_t to) {
            return given(static_cast<int>(from), static_cast<int>(to), epoch, step) + head;
        };
        if (done == 0) std::memcpy(brought(rank_, epoch), stated.data(), stated.size() * sizeof(std::uint64_t));
        for (std::size_t rank = 0; rank < n; ++rank) {
            const std::size_t part = part_of(in[rank].count, done, step);
            if (rank != own && part != 0) std::memcpy(staged(own, rank), in[rank].data + done, part);
        }
        if (done == 0) {
            if (!begin(Kind::all_to_all, mix(tag, schedule_.chunk_bytes))) return false;
            std::vector<std::uint64_t> matrix(2 * n * n);
            for (std::size_t rank = 0; rank < n; ++rank) {
                std::memcpy(&matrix[2 * n * rank], brought(static_cast<int>(rank), epoch), 2 * n * sizeof(std::uint64_t));
            }
            for (std::size_t from = 0; from < n; ++from) {
                for (std::size_t to = 0; to < n; ++to) {
                    const std::uint64_t sent = matrix[2 * n * from + to];
                    if (sent != matrix[2 * n * to + n + from]) return false;
                    longest = std::max<std::size_t>(longest, sent);
                }
            }
            if (in[own].count != out[own].count) return false;
        } else {
            publish();
            await_all();
        }
        for (std::size_t rank = 0; rank < n; ++rank) {
            const std::size_t part = part_of(out[rank].count, done, step);
            const std::byte* const from = rank == own ? in[own].data + done : staged(rank, own);
            if (part != 0) copy(out[rank].data + done, from, part, bytes >= stream_from_bytes);
        }
    }
    return true;
}

std::vector<std::string> Group::exchange(std::string_view said) {
    const Call call(*this, Kind::exchange, said.size());
    const std::uint32_t epoch = next_epoch();
    const std::uint64_t length = std::min({said.size(), exchange_bytes, slot_bytes() - sizeof(std::uint64_t)});
    std::memcpy(brought(rank_, epoch), &length, sizeof length);
    std::memcpy(brought(rank_, epoch) + sizeof length, said.data(), length);
    if (!begin(Kind::exchange, 0)) throw Error(Failure::config, "the ranks of a group do different things; start it again");
    std::vector<std::string> all;
    for (int rank = 0; rank < size(); ++rank) {
        std::uint64_t stated = 0;
        std::memcpy(&stated, brought(rank, epoch), sizeof stated);
        stated = std::min<std::uint64_t>({stated, exchange_bytes, slot_bytes() - sizeof stated});
        all.emplace_back(reinterpret_cast<const char*>(brought(rank, epoch) + sizeof stated), stated);
    }
    return all;
}

bool Group::all_reduce(const Region& region, std::size_t offset, std::size_t count, bool into_result, bool stream,
                       const Reduction& reduction, std::uint64_t tag) {
    check(reduction);
    const std::size_t item = item_bytes(reduction.dtype);
    if (offset > region.bytes() || count > (region.bytes() - offset) / item) {
        throw Error(Failure::config, std::to_string(count) + " elements at byte " + std::to_string(offset) + " of a bucket of " +
                                         std::to_string(region.bytes()) + " bytes");
    }
    const Call call(*this, Kind::all_reduce, count * item);
    const std::uint64_t hash = mix(mix(mix(mix(tag, offset), count), reduction), into_result ? 2 : 1);
    if (!begin(Kind::all_reduce, hash)) return false;
    std::array<std::byte*, max_ranks> parts{};
    for (int rank = 0; rank < size(); ++rank) parts[static_cast<std::size_t>(rank)] = region.part(rank) + offset;
    reduce_parts(std::span(parts).first(static_cast<std::size_t>(size())), into_result ? region.result() + offset : nullptr, count,
                 reduction, into_result && stream);
    return true;
}

// Each rank reduces its slice of the parts of all, and stores it to all of them, or once.
void Group::reduce_parts(std::span<std::byte* const> parts, std::byte* into, std::size_t count, const Reduction& reduction, bool stream) {
    std::array<const void*, max_ranks> inputs{};
    std::array<void*, max_ranks> outputs{};
    const std::size_t item = item_bytes(reduction.dtype);
    const std::size_t first = slice_begin(count, item, rank_, size());
    const std::size_t last = slice_begin(count, item, rank_ + 1, size());
    for (std::size_t rank = 0; rank < parts.size(); ++rank) inputs[rank] = outputs[rank] = parts[rank] + first * item;
    if (into != nullptr) outputs[0] = into + first * item;
    if (first != last) {
        reduce({.in = reduction.dtype,
                .out = reduction.dtype,
                .op = reduction.op,
                .scale = reduction.scale,
                .inputs = inputs.data(),
                .n_inputs = size(),
                .outputs = outputs.data(),
                .n_outputs = into != nullptr ? 1 : size(),
                .count = last - first,
                .stream_stores = stream});
    }
    publish();
    await_all();
}

}  // namespace softs::collective
