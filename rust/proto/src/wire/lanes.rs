//! The messages about lanes: LANES, SUPPLY, ATTACH, DETACH, UNATTACHED, ATTACHED.

use super::error::WireError;
use super::lane_types::{AnnouncedLane, LaneName, LaneOffer, Supply};
use super::lists::{list, short_list};
use super::pushes::{ToClient, ToSupplier};
use super::reader::Reader;
use super::requests::{ClientRequest, SupplierRequest};
use super::writer;
use crate::limits::MAX_ANNOUNCED;

pub(super) fn announced(payload: &[u8]) -> Result<ClientRequest<'_>, WireError> {
    let mut reader = Reader::new("LANES", payload);
    reader.tuple("payload", 3)?;
    let address = reader.id("address")?;
    let segment_id = reader.uint("segment_id")?;
    let lanes = short_list(&mut reader, "lanes", MAX_ANNOUNCED, |reader| {
        reader.tuple("lanes", 3)?;
        Ok(AnnouncedLane {
            product_id: reader.id("product_id")?,
            lane: reader.uint32("lane")?,
            generation: reader.uint32("generation")?,
        })
    })?;
    reader.end()?;
    Ok(ClientRequest::Lanes { address, segment_id, lanes })
}

pub(super) fn supply(payload: &[u8]) -> Result<ToClient<'_>, WireError> {
    let mut reader = Reader::new("SUPPLY", payload);
    let supply = list(&mut reader, "supply", 5, |reader| {
        reader.tuple("supply", 4)?;
        Ok(Supply {
            product_id: reader.id("product_id")?,
            lane_suppliers: reader.uint32("lane_suppliers")?,
            wire_suppliers: reader.uint32("wire_suppliers")?,
            softs_suppliers: reader.uint32("softs_suppliers")?,
        })
    })?;
    reader.end()?;
    Ok(ToClient::Supply(supply))
}

pub(super) fn attach(payload: &[u8]) -> Result<ToSupplier<'_>, WireError> {
    let mut reader = Reader::new("ATTACH", payload);
    let offers = list(&mut reader, "lanes", 6, |reader| {
        reader.tuple("lanes", 5)?;
        Ok(LaneOffer { name: fields(reader)?, product_id: reader.id("product_id")? })
    })?;
    reader.end()?;
    Ok(ToSupplier::Attach(offers))
}

pub(super) fn detach(payload: &[u8]) -> Result<ToSupplier<'_>, WireError> {
    names("DETACH", payload).map(ToSupplier::Detach)
}

pub(super) fn unattached(payload: &[u8]) -> Result<SupplierRequest<'_>, WireError> {
    names("UNATTACHED", payload).map(SupplierRequest::Unattached)
}

pub(super) fn attached(payload: &[u8]) -> Result<SupplierRequest<'_>, WireError> {
    names("ATTACHED", payload).map(SupplierRequest::Attached)
}

pub(super) fn encode_announced(
    out: &mut Vec<u8>,
    address: &str,
    segment_id: u64,
    lanes: &[AnnouncedLane<'_>],
) {
    writer::array(out, 3);
    writer::str(out, address);
    writer::uint(out, segment_id);
    writer::list(out, lanes, |out, lane| {
        writer::array(out, 3);
        writer::str(out, lane.product_id);
        writer::uint(out, lane.lane.into());
        writer::uint(out, lane.generation.into());
    });
}

pub(super) fn encode_supply(out: &mut Vec<u8>, supply: &[Supply<'_>]) {
    writer::list(out, supply, |out, product| {
        writer::array(out, 4);
        writer::str(out, product.product_id);
        writer::uint(out, product.lane_suppliers.into());
        writer::uint(out, product.wire_suppliers.into());
        writer::uint(out, product.softs_suppliers.into());
    });
}

pub(super) fn encode_offers(out: &mut Vec<u8>, offers: &[LaneOffer<'_>]) {
    writer::list(out, offers, |out, offer| {
        writer::array(out, 5);
        encode_fields(out, &offer.name);
        writer::str(out, offer.product_id);
    });
}

pub(super) fn encode_names(out: &mut Vec<u8>, names: &[LaneName<'_>]) {
    writer::list(out, names, |out, name| {
        writer::array(out, 4);
        encode_fields(out, name);
    });
}

fn names<'a>(message: &'static str, payload: &'a [u8]) -> Result<Vec<LaneName<'a>>, WireError> {
    let mut reader = Reader::new(message, payload);
    let names = list(&mut reader, "lanes", 5, |reader| {
        reader.tuple("lanes", 4)?;
        fields(reader)
    })?;
    reader.end()?;
    Ok(names)
}

fn fields<'a>(reader: &mut Reader<'a>) -> Result<LaneName<'a>, WireError> {
    Ok(LaneName {
        address: reader.id("address")?,
        segment_id: reader.uint("segment_id")?,
        lane: reader.uint32("lane")?,
        generation: reader.uint32("generation")?,
    })
}

fn encode_fields(out: &mut Vec<u8>, name: &LaneName<'_>) {
    writer::str(out, name.address);
    writer::uint(out, name.segment_id);
    writer::uint(out, name.lane.into());
    writer::uint(out, name.generation.into());
}
